package chat

// Statements. Every node knows its line for error texts.
type (
	node any

	dataNode struct{ text text }

	outNode struct {
		line int
		x    expr
	}

	ifNode struct {
		line  int
		conds []expr
		thens [][]node
		els   []node
	}

	forNode struct {
		line    int
		targets []string
		iter    expr
		filter  expr // nil: all items
		body    []node
		els     []node
	}

	setNode struct {
		line    int
		targets []target
		x       expr   // nil: the block's output
		body    []node // of a block
		filters []filterCall
	}

	macroNode struct {
		line     int
		name     string
		params   []string
		defaults []expr // of the last params
		body     []node
	}

	callNode struct {
		line   int
		caller *macroNode
		call   *callExpr
	}

	filterNode struct {
		line    int
		filters []filterCall
		body    []node
	}

	withNode struct {
		line  int
		names []string
		xs    []expr
		body  []node
	}

	blockNode struct{ body []node } // no scope of its own

	loopControl struct {
		line int
		stop bool // break, else continue
	}
)

// A target is what a set statement assigns to.
type target struct{ name, attr string }

// Expressions.
type (
	expr any

	constExpr struct{ v any }
	nameExpr  struct {
		line int
		name string
	}
	attrExpr struct {
		line int
		x    expr
		name string
	}
	indexExpr struct {
		line  int
		x, at expr
	}
	sliceExpr struct {
		line     int
		x        expr
		from, to expr // nil when left out
		step     expr
	}
	callExpr struct {
		line int
		fn   expr
		args argList
	}
	filterExpr struct {
		x expr
		f filterCall
	}
	testExpr struct {
		line int
		x    expr
		name string
		args argList
		not  bool
	}
	unaryExpr struct {
		line int
		op   string
		x    expr
	}
	binExpr struct {
		line int
		op   string
		l, r expr
	}
	compareExpr struct {
		line int
		x    expr
		ops  []string
		xs   []expr
	}
	condExpr struct {
		cond, then, els expr // els nil: undefined
	}
	listExpr struct {
		items []expr
		tuple bool
	}
	dictExpr struct {
		line       int
		keys, vals []expr
	}
)

// A filterCall is the use of a filter.
type filterCall struct {
	line int
	name string
	args argList
}

// An argList is the arguments of a call.
type argList struct {
	pos   []expr
	names []string // of the keyword arguments
	kw    []expr
}
