package sim

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"tandem/internal/kv"
)

// sequence computes one sequence and appends its rows.
func (m *Model) sequence(s *kv.Seq, rows [][]float32) [][]float32 {
	end := s.Pos + len(s.Tokens)
	first := end - s.Logits // positions from here on have a row
	past := m.cfg.Seed      // chain over all whole tiles before the present one
	for i := range s.Pos / kv.TileTokens {
		past = m.wholeTile(m.tile(s, i), past)
	}
	here := past // past and the slots of the present tile
	for p := s.Pos - s.Pos%kv.TileTokens; p < end; p++ {
		t, slot := m.tile(s, p/kv.TileTokens), p%kv.TileTokens
		if p >= s.Pos && p >= s.WriteFrom {
			m.write(t, slot, mix(here^mix(uint64(s.Tokens[p-s.Pos])<<32|uint64(p))))
		}
		here = m.slot(t, slot, here)
		if p >= first {
			rows = append(rows, m.row(len(rows), here))
		}
		if slot == kv.TileTokens-1 {
			past = m.wholeTile(t, past)
			here = past
		}
	}
	for i := s.SealFrom; i < s.SealTo; i++ {
		filled := kv.TileTokens
		if i == s.SealTo-1 {
			filled = s.SealFilled
		}
		for _, a := range m.arenas {
			a.Seal(m.tile(s, i), filled)
		}
	}
	return rows
}

// tile returns the tile that holds tile i of the sequence.
func (m *Model) tile(s *kv.Seq, i int) kv.TileID {
	n := m.layout.BlockTiles
	return kv.TileID(int(s.Blocks[i/n])*n + i%n)
}

// wholeTile folds all bytes of a tile into h, in an order that does not depend
// on the ranks: layers, then heads of the whole model.
func (m *Model) wholeTile(t kv.TileID, h uint64) uint64 {
	for layer := range m.layout.Layers {
		for _, a := range m.arenas {
			for head := range m.layout.Heads {
				h = xxh3.HashSeed(a.Head(t, layer, head), h)
			}
		}
	}
	return h
}

// slot folds the bytes of one slot of a tile into h: a column of K and a row of
// V, of every layer and head.
func (m *Model) slot(t kv.TileID, slot int, h uint64) uint64 {
	e := m.layout.Elem.Size()
	row := kv.TileTokens * e
	for layer := range m.layout.Layers {
		for _, a := range m.arenas {
			for head := range m.layout.Heads {
				b := a.Head(t, layer, head)
				for o := slot * e; o < m.layout.KBytes(); o += row {
					h = mix(h ^ element(b[o:o+e]))
				}
				v := m.layout.KBytes() + slot*m.layout.HeadDim*e
				h = xxh3.HashSeed(b[v:v+m.layout.HeadDim*e], h)
			}
		}
	}
	return h
}

// write fills one slot of a tile with bytes drawn from h.
func (m *Model) write(t kv.TileID, slot int, h uint64) {
	e := m.layout.Elem.Size()
	row := kv.TileTokens * e
	for layer := range m.layout.Layers {
		for _, a := range m.arenas {
			for head := range m.layout.Heads {
				b := a.Head(t, layer, head)
				for o := slot * e; o < m.layout.KBytes(); o += row {
					h = mix(h + 1)
					put(b[o:o+e], h)
				}
				v := m.layout.KBytes() + slot*m.layout.HeadDim*e
				for o := v; o < v+m.layout.HeadDim*e; o += e {
					h = mix(h + 2)
					put(b[o:o+e], h)
				}
			}
		}
	}
}

// row returns row i of the step: logits drawn from h. One token stands out.
func (m *Model) row(i int, h uint64) []float32 {
	n := m.cfg.Vocab
	r := m.memory[i*n : (i+1)*n : (i+1)*n]
	x := h
	for t := range r {
		x += 0x9e3779b97f4a7c15
		noise := float32((x^x>>29)*0xbf58476d1ce4e5b9>>40) / (1 << 24)
		switch {
		case t >= 'a' && t <= 'z' || t == ' ':
			r[t] = 4 * noise
		case t >= '!' && t <= '~':
			r[t] = 4*noise - 4
		default:
			r[t] = 4*noise - 14
		}
	}
	pick := mix(h ^ 0x5bd1e995)
	if every := uint64(max(m.cfg.EOSEvery, 0)); every > 0 && pick%every == 0 {
		r[EOS] = 7
		return r
	}
	r[m.table[(pick>>20)%uint64(len(m.table))]] += 3.5
	return r
}

func element(b []byte) uint64 {
	if len(b) == 4 {
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return uint64(binary.LittleEndian.Uint16(b))
}

func put(b []byte, h uint64) {
	if len(b) == 4 {
		binary.LittleEndian.PutUint32(b, uint32(h))
		return
	}
	binary.LittleEndian.PutUint16(b, uint16(h))
}

// mix is SplitMix64's finaliser.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
