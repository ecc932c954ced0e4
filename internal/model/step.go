package model

import (
	"errors"
	"fmt"

	"tandem/internal/kv"
)

// passRows is the most tokens that go through the layers together: more gain
// nothing, since a group of weights is then used 512 times, and their inputs
// would outgrow the second-level cache.
const passRows = 512

// A BatchError says that a batch asks for what the model or its arenas do not
// have. Nothing was computed.
type BatchError struct {
	Seq    int // index into Batch.Seqs
	Reason string
}

// Error implements error.
func (e *BatchError) Error() string {
	return fmt.Sprintf("model: computing sequence %d of the batch: %s", e.Seq, e.Reason)
}

var errClosed = errors.New("model: computing a step: the model is closed")

// Step computes b: keys and values of every token from WriteFrom on into the
// arenas of all ranks, and the seals of the tiles it finishes. It returns one
// row of Info().Vocab logits for each that is wanted, in the order of the
// sequences, valid until the next Step. It allocates only while the number of
// wanted rows or of tiles grows beyond any step before.
func (m *Model) Step(b *kv.Batch) ([][]float32, error) {
	if m.dead {
		return nil, errClosed
	}
	want := 0
	for i := range b.Seqs {
		if reason := m.check(&b.Seqs[i]); reason != "" {
			return nil, &BatchError{i, reason}
		}
		want += b.Seqs[i].Logits
	}
	m.room(want)
	m.tables(b)
	m.team.Rouse()
	done, seq, tok := 0, 0, 0
	for seq < len(b.Seqs) {
		seq, tok = m.gather(b, seq, tok)
		m.layers()
		done = m.head(done)
	}
	m.seal()
	return m.rows[:want], nil
}

// check returns what is wrong with s, or "".
func (m *Model) check(s *kv.Seq) string {
	end := s.Pos + len(s.Tokens)
	bt := m.layout.BlockTokens()
	switch {
	case len(s.Tokens) == 0:
		return "it has no tokens"
	case s.Pos < 0 || end > m.maxLen:
		return fmt.Sprintf("positions %d to %d are outside of the %d that the model has", s.Pos, end-1, m.maxLen)
	case len(s.Blocks) > m.maxLen/bt+1 || len(s.Blocks)*bt < end:
		return fmt.Sprintf("%d blocks of %d tokens do not fit %d positions", len(s.Blocks), bt, end)
	case s.Logits < 0 || s.Logits > len(s.Tokens):
		return fmt.Sprintf("%d rows of logits of %d tokens are wanted", s.Logits, len(s.Tokens))
	case s.SealFrom < s.SealTo && (s.SealFrom < 0 || s.SealTo > len(s.Blocks)*m.layout.BlockTiles || s.SealFilled < 1 || s.SealFilled > kv.TileTokens):
		return fmt.Sprintf("tiles %d to %d cannot be sealed with %d slots", s.SealFrom, s.SealTo-1, s.SealFilled)
	}
	for _, t := range s.Tokens {
		if t < 0 || int(t) >= m.p.vocab {
			return fmt.Sprintf("token %d is not one of %d", t, m.p.vocab)
		}
	}
	for _, id := range s.Blocks {
		if id < 0 || int(id) >= m.arenas[0].Blocks() {
			return fmt.Sprintf("block %d is not one of %d", id, m.arenas[0].Blocks())
		}
	}
	return ""
}

// room makes room for the rows of logits.
func (m *Model) room(want int) {
	stride := m.w.out.Padded()
	if n := want * stride; n > len(m.logits) {
		m.logits = make([]float32, n)
		m.rows = m.rows[:0]
		for i := range want {
			m.rows = append(m.rows, m.logits[i*stride:][:m.p.vocab:m.p.vocab])
		}
	}
}

// tables writes down, for every sequence, where each of its tiles is.
func (m *Model) tables(b *kv.Batch) {
	ps := &m.pass
	ps.offs, ps.first, ps.seals = ps.offs[:0], ps.first[:0], ps.seals[:0]
	bt, size := m.layout.BlockTiles, int64(m.layout.TileBytes())
	for i := range b.Seqs {
		s := &b.Seqs[i]
		ps.first = append(ps.first, len(ps.offs))
		tiles := (s.Pos + len(s.Tokens) + kv.TileTokens - 1) / kv.TileTokens
		for t := range tiles {
			ps.offs = append(ps.offs, (int64(s.Blocks[t/bt])*int64(bt)+int64(t%bt))*size)
		}
		for t := s.SealFrom; t < s.SealTo; t++ {
			filled := kv.TileTokens
			if t == s.SealTo-1 {
				filled = s.SealFilled
			}
			ps.seals = append(ps.seals, sealJob{kv.TileID(int(s.Blocks[t/bt])*bt + t%bt), filled})
		}
	}
	ps.first = append(ps.first, len(ps.offs))
}
