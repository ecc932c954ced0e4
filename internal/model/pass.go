package model

import (
	"math"

	"tandem/internal/compute"
	"tandem/internal/kv"
)

// A segment is the tokens of one sequence in a pass.
type segment struct {
	row, n    int     // rows of the pass
	pos       int     // position of the first
	writeFrom int     // position
	tiles     []int64 // offsets of the sequence's tiles in each arena
}

// A writeJob rotates and writes n tokens of a segment, from token tok on, all
// in one tile.
type writeJob struct{ seg, tok, n int }

// An attnJob is attention of n tokens of a segment and one KV head. A single
// token's job also rotates it and writes its key and value.
type attnJob struct{ seg, tok, n, head int }

// A sealJob seals one tile in every arena.
type sealJob struct {
	tile   kv.TileID
	filled int
}

// pass is what the tokens of one pass are and the buffers they go through.
type pass struct {
	n      int // rows
	tokens []kv.Token
	segs   []segment
	writes []writeJob
	attns  []attnJob
	last   []attnJob // of the last layer: what wanted rows need
	want   []int     // rows whose logits are wanted
	layer  int
	norm   []float32 // weights of the next norm
	embed  bool      // the next norm starts from the embeddings
	done   int       // rows of logits of earlier passes

	// Of the whole step: tile offsets of all sequences, where each sequence's
	// begin, and what is sealed at its end.
	offs  []int64
	first []int
	seals []sealJob

	x   []float32 // residual stream, [row][width]
	qkv []float32 // [row][q, k, v]
	att []float32 // [row][q], outputs of attention
	hid []float32 // [row][ffn], gate times up
	in  *compute.Act
	seg [4]*compute.Act // segments of att
	ffn [4]*compute.Act // segments of hid
	mem []member
}

// member is the working memory of one team member.
type member struct {
	h    []float32 // a row
	part []float32 // outputs of a chunk
	attn *compute.AttnScratch
	a    compute.Attn
}

// jobs are the functions given to the team, made once so that a step
// allocates nothing.
type jobs struct {
	norm, qkv, write, attend, setAtt, o, gateUp, setHid, down, head, out, seal func(member, chunk int)
}

// prepare makes the buffers of a pass.
func (m *Model) prepare() {
	p, w, ps := m.p, m.w, &m.pass
	m.scale = float32(1 / math.Sqrt(float64(p.headDim)))
	ps.x = make([]float32, passRows*p.width)
	ps.qkv = make([]float32, passRows*m.qkvDim())
	ps.att = make([]float32, passRows*p.qDim())
	ps.hid = make([]float32, passRows*p.ffn)
	ps.in = compute.NewAct(passRows, p.width, w.rowForm)
	for i := range 4 {
		c0, c1 := compute.Segment(p.qDim(), i)
		ps.seg[i] = compute.NewAct(passRows, c1-c0, w.attForm)
		c0, c1 = compute.Segment(p.ffn, i)
		ps.ffn[i] = compute.NewAct(passRows, c1-c0, w.ffnForm)
	}
	ps.mem = make([]member, m.team.N())
	for i := range ps.mem {
		ps.mem[i] = member{
			h:    make([]float32, max(p.width, padded(hiddenRows))),
			part: make([]float32, chunkTokens*max(4*tileRows, 2*hiddenRows)),
			attn: compute.NewAttnScratch(p.headDim),
		}
	}
	ps.tokens = make([]kv.Token, 0, passRows)
	ps.segs = make([]segment, 0, passRows)
	ps.writes = make([]writeJob, 0, passRows)
	ps.attns = make([]attnJob, 0, passRows*p.kvHeads)
	ps.last = make([]attnJob, 0, passRows*p.kvHeads)
	ps.want = make([]int, 0, passRows)
	ps.offs = make([]int64, 0, max(4096, m.arenas[0].Tiles()))
	m.jobs = jobs{
		norm: m.normChunk, qkv: m.qkvChunk, write: m.writeChunk, attend: m.attendChunk,
		setAtt: m.setAttChunk, o: m.oChunk, gateUp: m.gateUpChunk, setHid: m.setHidChunk,
		down: m.downChunk, head: m.headChunk, out: m.outChunk, seal: m.sealChunk,
	}
}

// qkvDim returns the columns of a row of queries, keys and values.
func (m *Model) qkvDim() int { return m.p.qDim() + 2*m.p.kDim() }

// gather fills the pass with tokens of b from token tok of sequence seq on,
// and returns where the next pass goes on.
func (m *Model) gather(b *kv.Batch, seq, tok int) (nextSeq, nextTok int) {
	ps := &m.pass
	ps.n = 0
	ps.tokens, ps.segs, ps.writes = ps.tokens[:0], ps.segs[:0], ps.writes[:0]
	ps.attns, ps.last, ps.want = ps.attns[:0], ps.last[:0], ps.want[:0]
	for seq < len(b.Seqs) && ps.n < passRows {
		s := &b.Seqs[seq]
		n := min(len(s.Tokens)-tok, passRows-ps.n)
		ps.tokens = append(ps.tokens, s.Tokens[tok:tok+n]...)
		wanted := max(tok, len(s.Tokens)-s.Logits)
		for i := wanted; i < tok+n; i++ {
			ps.want = append(ps.want, ps.n+i-tok)
		}
		m.addSegment(segment{ps.n, n, s.Pos + tok, s.WriteFrom, ps.offs[ps.first[seq]:ps.first[seq+1]]}, wanted-tok)
		ps.n += n
		if tok += n; tok == len(s.Tokens) {
			seq, tok = seq+1, 0
		}
	}
	m.setRows(ps.n)
	return seq, tok
}

// setRows makes the pass n rows long.
func (m *Model) setRows(n int) {
	ps := &m.pass
	ps.n = n
	ps.in.Reset(n)
	for i := range 4 {
		ps.seg[i].Reset(n)
		ps.ffn[i].Reset(n)
	}
}

// addSegment lists the jobs of a segment, of whose tokens those from wanted on
// yield logits. Jobs of the last tokens, which see the most keys, come first,
// so that no long job is begun last.
func (m *Model) addSegment(s segment, wanted int) {
	ps := &m.pass
	i := len(ps.segs)
	ps.segs = append(ps.segs, s)
	if s.n > 1 {
		for tok := 0; tok < s.n; {
			n := min(s.n-tok, kv.TileTokens-(s.pos+tok)%kv.TileTokens)
			ps.writes = append(ps.writes, writeJob{i, tok, n})
			tok += n
		}
	}
	step := maxGroup / m.p.group()
	for tok := (s.n - 1) / step * step; tok >= 0; tok -= step {
		for h := range m.p.kvHeads {
			j := attnJob{i, tok, min(step, s.n-tok), h}
			ps.attns = append(ps.attns, j)
			if tok+j.n > wanted || s.n == 1 {
				ps.last = append(ps.last, j) // a single token's job writes the cache
			}
		}
	}
}
