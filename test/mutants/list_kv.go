package main

// kvMutants break the pool, the prefix index and the seals.
var kvMutants = []listed{
	{
		File: "internal/kv/prefix.go", Tests: "TestPoolAgainstShadow",
		Old: "x.sum == sum && x.parent == parent && (parent != 0 || x.salt == salt) &&\n\t\t\tslices.Equal(p.held(b), tokens)",
		New: "x.sum == sum && x.parent == parent && (parent != 0 || x.salt == salt) && slices.Equal(tokens, tokens)",
		Why: "a hit is taken by its hash alone",
	},
	{
		File: "internal/kv/prefix.go", Tests: "TestPoolAgainstShadow",
		Old: "x.sum == sum && x.parent == parent &&", New: "x.sum == sum &&",
		Why: "a hit ignores what comes before the block",
	},
	{
		File: "internal/kv/prefix.go", Tests: "TestPoolAgainstShadow",
		Old: "(parent != 0 || x.salt == salt) &&", New: "",
		Why: "a hit ignores the salt",
	},
	{
		File: "internal/kv/prefix.go", Tests: "TestChildOfAnEvictedParent",
		Old: "p.made++", New: "p.made = Chain(b) + 1",
		Why: "a prefix that was evicted is mistaken for what took its block",
	},
	{
		File: "internal/kv/prefix.go", Tests: "TestPoolAgainstShadow",
		Old: "copy(p.held(b), tokens)", New: "",
		Why: "the index does not note what an entry holds",
	},
	{
		File: "internal/kv/prefix.go", Tests: "TestPoolAgainstShadow",
		Old: "p.Ref(b)\n\t\tdst = append(dst, b)", New: "dst = append(dst, b)",
		Why: "a hit takes no reference, so its block can be given out again",
	},
	{
		File: "internal/kv/prefix.go", Tests: "TestPoolEqualsTheSlowOne",
		Old: "for n := p.blockTokens; n < len(tokens); n += p.blockTokens {\n\t\tpart := tokens[n-p.blockTokens : n]\n\t\tb, _ := p.find(at, salt, part, p.sumOf(at, salt, part))\n\t\tif b == none {\n\t\t\tbreak\n\t\t}\n\t\tp.Ref(b)",
		New: "for n := p.blockTokens; n <= len(tokens); n += p.blockTokens {\n\t\tpart := tokens[n-p.blockTokens : n]\n\t\tb, _ := p.find(at, salt, part, p.sumOf(at, salt, part))\n\t\tif b == none {\n\t\t\tbreak\n\t\t}\n\t\tp.Ref(b)",
		Why: "a hit covers the whole prompt and leaves no token to compute",
	},
	{
		File: "internal/kv/pool.go", Tests: "TestPoolAgainstShadow",
		Old: "if p.blocks[b].id != 0 {\n\t\t\tp.evict(b)\n\t\t}", New: "",
		Why: "a recycled block stays in the prefix index",
	},
	{
		File: "internal/kv/pool.go", Tests: "TestPoolAgainstShadow",
		Old: "if x.refs > 0 {\n\t\treturn false\n\t}", New: "",
		Why: "a block is freed while others hold it",
	},
	{
		File: "internal/kv/pool.go", Tests: "TestMisusePanics",
		Old: "if x.refs <= 0 {", New: "if x.refs < 0 {",
		Why: "a block that is freed twice goes unnoticed",
	},
	{
		File: "internal/kv/pool.go", Tests: "TestPoolAgainstShadow",
		Old: "if n > p.free {\n\t\treturn dst, false\n\t}", New: "if n > p.free {\n\t\tn = p.free\n\t}",
		Why: "fewer blocks than asked for count as success",
	},
	{
		File: "internal/kv/pool.go", Tests: "TestOrderOfEviction",
		Old: "for i := len(blocks) - 1; i >= 0; i-- {", New: "for i := range blocks {",
		Why: "the beginning of a prefix is evicted before its end",
	},
	{
		File: "internal/kv/seal.go", Tests: "TestSumCoversEveryByte",
		Old: "h = xxh3.HashSeed(headBytes(tile, l, layer, head), h)",
		New: "h = xxh3.HashSeed(headBytes(tile, l, layer, head)[:l.KBytes()], h)",
		Why: "the sum does not cover the values",
	},
	{
		File: "internal/kv/seal.go", Tests: "TestSumCoversEveryByte",
		Old: "for layer := range l.Layers {\n\t\th =", New: "for layer := range l.Layers - 1 {\n\t\th =",
		Why: "the sum does not cover the last layer",
	},
	{
		File: "internal/kv/seal.go", Tests: "TestSealZeroesTheRestAndSums",
		Old: "clear(v[filled*l.HeadDim*l.Elem.Size():])", New: "clear(v[len(v):])",
		Why: "the unused slots of a partial tile carry what another request left there",
	},
}
