package compute

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// ErrShape says that a matrix or its source has an impossible shape.
var ErrShape = errors.New("shape does not fit")

// A Matrix is a packed weight matrix of Rows outputs and Cols inputs. Rows are
// padded to groups of 16 with zeros.
//
// A group lies in one piece. Quantized formats have 4 consecutive columns of a
// row together and 16 rows to a vector of 64 bytes; F16 and F32 have the 16
// rows of a column together. The scales of quantized blocks follow behind all
// groups, 16 to a block (for Q4_1 16 scales and 16 minima).
type Matrix struct {
	Type       Type
	Rows, Cols int

	w, d []byte
}

// Groups returns the number of groups of 16 rows.
func (m *Matrix) Groups() int { return (m.Rows + Lanes - 1) / Lanes }

// Padded returns Rows rounded up to whole groups: the outputs that Mul writes
// for each token.
func (m *Matrix) Padded() int { return m.Groups() * Lanes }

// Bytes returns how many bytes one pass over the matrix reads.
func (m *Matrix) Bytes() int { return len(m.w) + len(m.d) }

// groupBytes returns the bytes of a group's weights and of its scales.
func groupBytes(t Type, cols int) (w, d int) {
	nb := cols / quantBlock
	switch t {
	case F32:
		return cols * Lanes * 4, 0
	case F16:
		return cols * Lanes * 2, 0
	case Q4_0:
		return nb * 256, nb * 32
	case Q4_1:
		return nb * 256, nb * 64
	case Q8_0:
		return nb * 512, nb * 32
	}
	panic("compute: bytes of a group: " + t.String())
}

// PackedBytes returns the bytes a packed matrix takes, a multiple of 64.
func PackedBytes(t Type, rows, cols int) int {
	w, d := groupBytes(t, cols)
	return ((rows+Lanes-1)/Lanes*(w+d) + 63) &^ 63
}

// NewMatrix returns an all-zero matrix in mem, which must be zeroed, hold
// PackedBytes(t, rows, cols) bytes and should be aligned to 64 of them. The
// matrix keeps mem. Cols may be 0: every product is then 0.
func NewMatrix(t Type, rows, cols int, mem []byte) (*Matrix, error) {
	if t >= numTypes || rows < 1 || cols < 0 || cols%t.BlockSize() != 0 {
		return nil, fmt.Errorf("compute: making a %v matrix of %d by %d: %w", t, rows, cols, ErrShape)
	}
	if n := PackedBytes(t, rows, cols); len(mem) < n {
		return nil, fmt.Errorf("compute: making a %v matrix of %d by %d in %d bytes, not %d: %w", t, rows, cols, len(mem), n, ErrShape)
	}
	w, d := groupBytes(t, cols)
	m := &Matrix{Type: t, Rows: rows, Cols: cols}
	g := m.Groups()
	m.w = mem[: g*w : g*w]
	m.d = mem[g*w : g*(w+d) : g*(w+d)]
	return m, nil
}

// Segment returns the columns [from, to) of segment i, 0 to 3, of a matrix of
// cols columns whose products are summed in four fixed parts; borders are
// multiples of 32, so a segment may be empty.
func Segment(cols, i int) (from, to int) {
	to = cols
	if i < 3 {
		to = cols * (i + 1) / 4 &^ (quantBlock - 1)
	}
	return cols * i / 4 &^ (quantBlock - 1), to
}

// Rows are rows of a tensor as they lie in a GGUF file.
type Rows struct {
	Type  Type
	Data  []byte // the whole tensor
	Cols  int    // columns of the tensor
	Col   int    // first column taken; a multiple of the block size
	Count int    // rows taken

	// Index returns the tensor's row for row i of those taken, 0 <= i < Count;
	// nil takes the first Count rows in order. Shards, stacked tensors and the
	// permutation of rotary pairs to halves are made with it.
	Index func(i int) int
}

// row returns the bytes of row i from column Col on.
func (s *Rows) row(i int) []byte {
	if s.Index != nil {
		i = s.Index(i)
	}
	n := s.Type.RowBytes(s.Cols)
	return s.Data[i*n+s.Type.RowBytes(s.Col) : (i+1)*n]
}

// Pack puts s.Count rows, of them the m.Cols columns from s.Col on, at rows at,
// at+1, ... of m. The types must be equal, or m an F32 matrix, into which any
// type is dequantized. Calls for rows that share no group of 16 may run at the
// same time.
func (m *Matrix) Pack(at int, s Rows) error {
	bad := s.Type >= numTypes || s.Type != m.Type && m.Type != F32 ||
		at < 0 || s.Count < 0 || at+s.Count > m.Rows || s.Col < 0 || s.Col+m.Cols > s.Cols
	if !bad {
		bad = s.Cols%s.Type.BlockSize() != 0 || s.Col%s.Type.BlockSize() != 0 || m.Cols%s.Type.BlockSize() != 0
	}
	if bad {
		return fmt.Errorf("compute: packing %d %v rows of %d columns from %d into rows from %d of a %v matrix of %d by %d: %w",
			s.Count, s.Type, s.Cols, s.Col, at, m.Type, m.Rows, m.Cols, ErrShape)
	}
	rb := s.Type.RowBytes(s.Cols)
	for i := range s.Count {
		r := i
		if s.Index != nil {
			r = s.Index(i)
		}
		if r < 0 || (r+1)*rb > len(s.Data) {
			return fmt.Errorf("compute: packing row %d of a %v tensor of %d bytes a row and %d bytes: %w", r, s.Type, rb, len(s.Data), ErrShape)
		}
	}
	for i := range s.Count {
		m.packRow(at+i, s.Type, s.row(i))
	}
	return nil
}

// packRow puts the columns that start src into row r.
func (m *Matrix) packRow(r int, t Type, src []byte) {
	wb, db := groupBytes(m.Type, m.Cols)
	w, d := m.w[r/Lanes*wb:][:wb], m.d[r/Lanes*db:][:db]
	l := r % Lanes
	nb := m.Cols / quantBlock
	switch m.Type {
	case F32:
		packF32(w, l, t, src, m.Cols)
	case F16:
		for k := range m.Cols {
			o := (k*Lanes + l) * 2
			w[o], w[o+1] = src[2*k], src[2*k+1]
		}
	case Q8_0:
		packBlocks(w, d, l, src, nb, 34, 32, 2, 0x80808080)
	case Q4_0:
		packBlocks(w, d, l, src, nb, 18, 16, 2, 0)
	case Q4_1:
		packBlocks(w, d, l, src, nb, 20, 16, 4, 0)
	}
}

// packBlocks puts nb blocks of size bytes, head bytes of scales and then n of
// numbers, into lane l; flip is exclusive-ored into the numbers.
func packBlocks(w, d []byte, l int, src []byte, nb, size, n, head int, flip uint32) {
	le := binary.LittleEndian
	for b := range nb {
		s := src[b*size : b*size+size]
		sc := d[b*16*head+l*2:]
		sc[0], sc[1] = s[0], s[1]
		if head == 4 {
			sc[32], sc[33] = s[2], s[3]
		}
		s = s[head:]
		o := w[b*n*Lanes+l*4:]
		for j := 0; j < n; j += 4 {
			le.PutUint32(o[j*Lanes:], le.Uint32(s[j:])^flip)
		}
	}
}

// packF32 dequantizes cols columns of a row of type t into lane l.
func packF32(w []byte, l int, t Type, src []byte, cols int) {
	var x [quantBlock]float32
	le := binary.LittleEndian
	for k := 0; k < cols; k += quantBlock {
		n := min(quantBlock, cols-k)
		Dequantize(x[:n], t, src[t.RowBytes(k):])
		for i, v := range x[:n] {
			le.PutUint32(w[((k+i)*Lanes+l)*4:], math.Float32bits(v))
		}
	}
}

// Dequantize writes the first len(dst) columns of a row of a GGUF tensor, a
// multiple of the block size, into dst.
func Dequantize(dst []float32, t Type, src []byte) {
	le := binary.LittleEndian
	half := func(o int) float32 { return F16Float(le.Uint16(src[o:])) }
	switch t {
	case F32:
		for i := range dst {
			dst[i] = math.Float32frombits(le.Uint32(src[4*i:]))
		}
	case F16:
		for i := range dst {
			dst[i] = half(2 * i)
		}
	case Q8_0:
		for b := range len(dst) / quantBlock {
			d := half(b * 34)
			for k, q := range src[b*34+2 : b*34+34] {
				dst[b*quantBlock+k] = d * float32(int8(q))
			}
		}
	case Q4_0:
		for b := range len(dst) / quantBlock {
			d := half(b * 18)
			for k, q := range src[b*18+2 : b*18+18] {
				dst[b*quantBlock+k] = d * float32(int(q&15)-8)
				dst[b*quantBlock+16+k] = d * float32(int(q>>4)-8)
			}
		}
	case Q4_1:
		for b := range len(dst) / quantBlock {
			d, m := half(b*20), half(b*20+2)
			for k, q := range src[b*20+4 : b*20+20] {
				dst[b*quantBlock+k] = fma32(d, float32(q&15), m)
				dst[b*quantBlock+16+k] = fma32(d, float32(q>>4), m)
			}
		}
	default:
		panic("compute: dequantizing " + t.String())
	}
}
