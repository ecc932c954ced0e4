package model

import (
	"tandem/internal/compute"
	"tandem/internal/kv"
)

// heavyRows is the number of rows from which a job takes so long that parked
// team members are roused for each.
const heavyRows = 16

// serialRows is the number of rows up to which making inputs of a product is
// one chunk: dividing it would take longer than doing it.
const serialRows = 4

// chunks returns how many chunks n units of work are cut into.
func (m *Model) chunks(n int) int { return min(n, 4*m.team.N(), compute.MaxChunks) }

// rowTiles returns the tiles of inputs that n rows make. Members that set
// inputs work on different tiles: the scales of a tile's rows lie side by side,
// and cores that write to the same cache line wait for each other.
func rowTiles(n int) int { return (n + compute.Lanes - 1) / compute.Lanes }

// rowChunks is chunks for work on n rows.
func (m *Model) rowChunks(n int) int { return m.chunks(rowTiles(n)) }

// rowShare returns the rows [from, to) of chunk c.
func (m *Model) rowShare(n, c int) (from, to int) {
	from, to = share(rowTiles(n), c, m.rowChunks(n))
	return from * compute.Lanes, min(n, to*compute.Lanes)
}

// setChunks is rowChunks where each of the four segments of a row has inputs of
// its own.
func (m *Model) setChunks(n int) int {
	if n <= serialRows {
		return 1
	}
	return m.chunks(4 * rowTiles(n))
}

// share returns chunk c's part [from, to) of n units in so many chunks.
func share(n, c, chunks int) (from, to int) { return n * c / chunks, n * (c + 1) / chunks }

func (m *Model) do(chunks int, f func(member, chunk int)) {
	if m.pass.n >= heavyRows {
		m.team.Rouse()
	}
	m.team.Do(chunks, f)
}

// layers runs the pass through all layers.
func (m *Model) layers() {
	ps := &m.pass
	rows := m.rowChunks(ps.n)
	for ps.layer = range m.w.layers {
		y := &m.w.layers[ps.layer]
		ps.norm, ps.embed = y.attnNorm, ps.layer == 0
		m.do(rows, m.jobs.norm)
		m.do(m.chunks(m.qkvDim()/compute.Lanes), m.jobs.qkv)
		if len(ps.writes) > 0 {
			m.do(min(len(ps.writes), compute.MaxChunks), m.jobs.write)
		}
		if ps.layer == m.p.layers-1 {
			if len(ps.last) > 0 {
				ps.attns, ps.last = ps.last, ps.attns
				m.do(min(len(ps.attns), 1024), m.jobs.attend)
				ps.attns, ps.last = ps.last, ps.attns
			}
			if m.keepWanted(); ps.n == 0 {
				return
			}
			rows = m.rowChunks(ps.n)
		} else {
			m.do(min(len(ps.attns), 1024), m.jobs.attend)
		}
		m.do(m.setChunks(ps.n), m.jobs.setAtt)
		m.do(len(y.o.tiles), m.jobs.o)
		ps.norm, ps.embed = y.ffnNorm, false
		m.do(rows, m.jobs.norm)
		m.do(len(y.gateUp), m.jobs.gateUp)
		m.do(m.setChunks(ps.n), m.jobs.setHid)
		m.do(len(y.down.tiles), m.jobs.down)
	}
}

// keepWanted leaves only the rows whose logits are wanted in the pass: behind
// the last attention no row reads another.
func (m *Model) keepWanted() {
	ps, width, q := &m.pass, m.p.width, m.p.qDim()
	for i, r := range ps.want {
		if i < r {
			copy(ps.x[i*width:][:width], ps.x[r*width:])
			copy(ps.att[i*q:][:q], ps.att[r*q:])
		}
		ps.want[i] = i
	}
	m.setRows(len(ps.want))
}

// normChunk makes normed rows the inputs of the next product. Before the first
// layer it makes the rows of the tokens' embeddings.
func (m *Model) normChunk(member, c int) {
	p, ps := m.p, &m.pass
	h := ps.mem[member].h[:p.width]
	from, to := m.rowShare(ps.n, c)
	for i := from; i < to; i++ {
		x := ps.x[i*p.width:][:p.width]
		if ps.embed {
			e := &m.w.embd
			compute.Dequantize(x, e.typ, e.data[int(ps.tokens[i])*e.typ.RowBytes(p.width):])
		}
		m.k.RMSNorm(h, x, ps.norm, p.eps)
		m.k.Set(ps.in, i, h)
	}
}

func (m *Model) qkvChunk(_, c int) {
	dim := m.qkvDim()
	groups := dim / compute.Lanes
	from, to := share(groups, c, m.chunks(groups))
	for _, q := range m.w.layers[m.pass.layer].qkv {
		g := q.col / compute.Lanes
		m.k.Mul(q.m, m.pass.qkv[q.col:], dim, m.pass.in, max(from-g, 0), min(to-g, q.m.Groups()))
	}
}

// rotate applies the rotary embedding to n heads that lie side by side.
func (m *Model) rotate(x []float32, n, pos int) {
	cos, sin := m.rope.at(pos)
	d := m.p.headDim
	for h := range n {
		m.k.Rope(x[h*d:(h+1)*d], cos, sin)
	}
}

// elem is the cache's element type in compute's terms.
func (m *Model) elem() compute.Type {
	if m.layout.Elem == kv.F32 {
		return compute.F32
	}
	return compute.F16
}

// place returns the arena of a KV head and the head's offset in a tile of it.
func (m *Model) place(head int) (*kv.Arena, int) {
	n := m.layout.Heads
	return m.arenas[head/n], m.pass.layer*m.layout.LayerBytes() + head%n*m.layout.HeadBytes()
}

// put writes the keys and values of one KV head of n tokens, from row on, that
// lie in one tile.
func (m *Model) put(s *segment, head, row, pos, n int) {
	if skip := s.writeFrom - pos; skip > 0 {
		if skip >= n {
			return
		}
		row, pos, n = row+skip, pos+skip, n-skip
	}
	d, dim := m.p.headDim, m.qkvDim()
	arena, at := m.place(head)
	tile := arena.Bytes()[int(s.tiles[pos/kv.TileTokens])+at:]
	kb, slot := m.layout.KBytes(), pos%kv.TileTokens
	key := m.pass.qkv[row*dim+m.p.qDim()+head*d:]
	m.k.WriteK(tile[:kb], m.elem(), d, slot, n, key, dim)
	m.k.WriteV(tile[kb:2*kb], m.elem(), d, slot, n, key[m.p.kDim():], dim)
}

func (m *Model) writeChunk(_, c int) {
	ps, p := &m.pass, m.p
	chunks := min(len(ps.writes), compute.MaxChunks)
	from, to := share(len(ps.writes), c, chunks)
	for _, w := range ps.writes[from:to] {
		s := &ps.segs[w.seg]
		for t := w.tok; t < w.tok+w.n; t++ {
			m.rotate(ps.qkv[(s.row+t)*m.qkvDim():], p.heads+p.kvHeads, s.pos+t)
		}
		for h := range p.kvHeads {
			m.put(s, h, s.row+w.tok, s.pos+w.tok, w.n)
		}
	}
}

func (m *Model) attendChunk(member, c int) {
	ps := &m.pass
	from, to := share(len(ps.attns), c, min(len(ps.attns), 1024))
	for _, j := range ps.attns[from:to] {
		m.attend(&ps.mem[member], j)
	}
}

func (m *Model) attend(w *member, j attnJob) {
	ps, p := &m.pass, m.p
	s := &ps.segs[j.seg]
	d, g, dim := p.headDim, p.group(), m.qkvDim()
	row, pos := s.row+j.tok, s.pos+j.tok
	q := ps.qkv[row*dim+j.head*g*d:]
	if s.n == 1 {
		m.rotate(q, g, pos)
		m.rotate(ps.qkv[row*dim+p.qDim()+j.head*d:], 1, pos)
		m.put(s, j.head, row, pos, 1)
	}
	arena, at := m.place(j.head)
	w.a = compute.Attn{
		Q: q, QStride: dim,
		Out: ps.att[row*p.qDim()+j.head*g*d:], OutStride: p.qDim(),
		Tokens: j.n, Group: g, Dim: d, Pos: pos, Scale: m.scale,
		KV: arena.Bytes(), At: at, Tiles: s.tiles, Elem: m.elem(),
	}
	m.k.Attend(&w.a, w.attn)
}

// setSegments makes the rows of x the inputs of a segmented product, chunk c of
// them: some tiles of some segments.
func (m *Model) setSegments(c int, to *[4]*compute.Act, x []float32, cols int) {
	n := m.pass.n
	first, end := share(4*rowTiles(n), c, m.setChunks(n))
	for u := first; u < end; u++ {
		seg, row := u%4, u/4*compute.Lanes
		c0, c1 := compute.Segment(cols, seg)
		if c0 == c1 {
			continue
		}
		for i := row; i < min(n, row+compute.Lanes); i++ {
			m.k.Set(to[seg], i, x[i*cols+c0:i*cols+c1])
		}
	}
}

func (m *Model) setAttChunk(_, c int) { m.setSegments(c, &m.pass.seg, m.pass.att, m.p.qDim()) }
func (m *Model) setHidChunk(_, c int) { m.setSegments(c, &m.pass.ffn, m.pass.hid, m.p.ffn) }

// residual adds chunk c of a segmented product to the residual stream.
func (m *Model) residual(member, c int, s *segmented, in *[4]*compute.Act) {
	ps, width := &m.pass, m.p.width
	part := ps.mem[member].part
	const size = chunkTokens * tileRows
	at := c * tileRows
	n := min(tileRows, width-at)
	for t0 := 0; t0 < ps.n; t0 += chunkTokens {
		t1 := min(ps.n, t0+chunkTokens)
		for i, a := range in {
			w := s.tiles[c][i]
			m.k.MulTokens(w, part[i*size:(i+1)*size], tileRows, a, t0, t1, 0, w.Groups())
		}
		for r := range t1 - t0 {
			o := part[r*tileRows:]
			m.k.AddParts(ps.x[(t0+r)*width+at:][:n], o[:n], o[size:][:n], o[2*size:][:n], o[3*size:][:n])
		}
	}
}

func (m *Model) oChunk(member, c int) {
	m.residual(member, c, &m.w.layers[m.pass.layer].o, &m.pass.seg)
}

func (m *Model) downChunk(member, c int) {
	m.residual(member, c, &m.w.layers[m.pass.layer].down, &m.pass.ffn)
}

func (m *Model) gateUpChunk(member, c int) {
	const stride = 2 * hiddenRows
	ps, ffn := &m.pass, m.p.ffn
	part := ps.mem[member].part
	at := c * hiddenRows
	n := min(hiddenRows, ffn-at)
	up := padded(n)
	for t0 := 0; t0 < ps.n; t0 += chunkTokens {
		t1 := min(ps.n, t0+chunkTokens)
		for _, q := range m.w.layers[ps.layer].gateUp[c] {
			m.k.MulTokens(q.m, part[q.col:], stride, ps.in, t0, t1, 0, q.m.Groups())
		}
		for r := range t1 - t0 {
			g := part[r*stride:]
			m.k.SiluMul(g[:n], g[up:up+n])
			copy(ps.hid[(t0+r)*ffn+at:][:n], g[:n])
		}
	}
}

// head computes the wanted logits of the pass into rows from done on and
// returns how many there are then.
func (m *Model) head(done int) int {
	ps := &m.pass
	n := len(ps.want)
	if n == 0 {
		return done
	}
	ps.in.Reset(n)
	m.do(m.rowChunks(n), m.jobs.head)
	ps.done = done
	m.do(m.outChunks(), m.jobs.out)
	return done + n
}

func (m *Model) headChunk(member, c int) {
	ps, width := &m.pass, m.p.width
	h := ps.mem[member].h[:width]
	from, to := m.rowShare(len(ps.want), c)
	for i := from; i < to; i++ {
		m.k.RMSNorm(h, ps.x[ps.want[i]*width:][:width], m.w.outNorm, m.p.eps)
		m.k.Set(ps.in, i, h)
	}
}

// outChunks cuts the output matrix finer than others: it is the largest.
func (m *Model) outChunks() int { return min(m.w.out.Groups(), 16*m.team.N()) }

func (m *Model) outChunk(_, c int) {
	stride := m.w.out.Padded()
	from, to := share(m.w.out.Groups(), c, m.outChunks())
	m.k.Mul(m.w.out, m.logits[m.pass.done*stride:], stride, m.pass.in, from, to)
}

// seal seals the tiles that the step finished, in every arena.
func (m *Model) seal() {
	if n := len(m.pass.seals) * len(m.arenas); n > 0 {
		m.do(min(n, compute.MaxChunks), m.jobs.seal)
	}
}

func (m *Model) sealChunk(_, c int) {
	seals := m.pass.seals
	n := len(seals) * len(m.arenas)
	from, to := share(n, c, min(n, compute.MaxChunks))
	for i := from; i < to; i++ {
		s := seals[i/len(m.arenas)]
		m.arenas[i%len(m.arenas)].Seal(s.tile, s.filled)
	}
}
