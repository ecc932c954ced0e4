package gguf

import "fmt"

// A Type is the storage type of a tensor's elements, numbered as in the file.
type Type uint32

// The types that Tandem computes with. Others are known by name and size, so
// that a file holding them is read and then refused by name.
const (
	F32  Type = 0
	F16  Type = 1
	Q4_0 Type = 2
	Q4_1 Type = 3
	Q8_0 Type = 8
	BF16 Type = 30
)

type typeInfo struct {
	name  string
	block int // elements of a block
	bytes int // bytes of a block
}

// typeInfos lists every type this package can size.
var typeInfos = map[Type]typeInfo{
	F32: {"F32", 1, 4}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2},
	Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q8_0: {"Q8_0", 32, 34},
	6: {"Q5_0", 32, 22}, 7: {"Q5_1", 32, 24}, 9: {"Q8_1", 32, 36},
	10: {"Q2_K", 256, 84}, 11: {"Q3_K", 256, 110}, 12: {"Q4_K", 256, 144},
	13: {"Q5_K", 256, 176}, 14: {"Q6_K", 256, 210}, 15: {"Q8_K", 256, 292},
	16: {"IQ2_XXS", 256, 66}, 17: {"IQ2_XS", 256, 74}, 18: {"IQ3_XXS", 256, 98},
	19: {"IQ1_S", 256, 50}, 20: {"IQ4_NL", 32, 18}, 21: {"IQ3_S", 256, 110},
	22: {"IQ2_S", 256, 82}, 23: {"IQ4_XS", 256, 136}, 29: {"IQ1_M", 256, 56},
	24: {"I8", 1, 1}, 25: {"I16", 1, 2}, 26: {"I32", 1, 4}, 27: {"I64", 1, 8},
	28: {"F64", 1, 8}, 34: {"TQ1_0", 256, 54}, 35: {"TQ2_0", 256, 66}, 39: {"MXFP4", 32, 17},
}

// String returns the type's usual name, such as "Q4_1".
func (t Type) String() string {
	if i, ok := typeInfos[t]; ok {
		return i.name
	}
	return fmt.Sprintf("type %d", uint32(t))
}

// BlockSize returns how many elements share a block, or 0 for an unknown type.
func (t Type) BlockSize() int { return typeInfos[t].block }

// BlockBytes returns the bytes of a block, or 0 for an unknown type.
func (t Type) BlockBytes() int { return typeInfos[t].bytes }

// kind is the type of a metadata value, numbered as in the file.
type kind uint32

const (
	kindUint8 kind = iota
	kindInt8
	kindUint16
	kindInt16
	kindUint32
	kindInt32
	kindFloat32
	kindBool
	kindString
	kindArray
	kindUint64
	kindInt64
	kindFloat64
)

// kindNames is indexed by kind.
var kindNames = [...]string{"uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64"}

// kindSizes is indexed by kind: the bytes of a value, 0 for those of no fixed
// size.
var kindSizes = [...]uint64{1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8}

func (k kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("value type %d", uint32(k))
}

func (k kind) known() bool { return int(k) < len(kindNames) }
