package compute

import "fmt"

// A Type is an element format of a weight matrix, as GGUF names it.
type Type uint8

// The formats, spelled as in GGUF. Quantized ones have blocks of 32 columns with a binary16 scale.
const (
	F32  Type = iota // binary32
	F16              // binary16
	Q4_0             // d * (q - 8), q of 4 bits
	Q4_1             // d * q + m, q of 4 bits
	Q8_0             // d * q, q of 8 bits with sign

	numTypes = iota
)

// String returns GGUF's name of the format.
func (t Type) String() string {
	switch t {
	case F32:
		return "F32"
	case F16:
		return "F16"
	case Q4_0:
		return "Q4_0"
	case Q4_1:
		return "Q4_1"
	case Q8_0:
		return "Q8_0"
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// BlockSize returns the columns of a block: 32, or 1 for F16 and F32.
func (t Type) BlockSize() int {
	if t.Quantized() {
		return quantBlock
	}
	return 1
}

// BlockBytes returns the bytes of a block in a GGUF file.
func (t Type) BlockBytes() int {
	switch t {
	case F32:
		return 4
	case F16:
		return 2
	case Q4_0:
		return 18
	case Q4_1:
		return 20
	case Q8_0:
		return 34
	}
	panic("compute: bytes of a block: " + t.String())
}

// RowBytes returns the bytes of a row of cols columns in a GGUF file.
func (t Type) RowBytes(cols int) int { return cols / t.BlockSize() * t.BlockBytes() }

// Quantized reports whether products take int8 activations.
func (t Type) Quantized() bool { return t == Q4_0 || t == Q4_1 || t == Q8_0 }

// quantBlock is the columns of a quantized block, of weights and activations.
const quantBlock = 32
