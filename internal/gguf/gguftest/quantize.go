package gguftest

import (
	"encoding/binary"
	"fmt"
	"math"

	"tandem/internal/gguf"
)

// Encode returns x in the file form of typ: F32, F16, Q4_0, Q4_1 or Q8_0. The
// length of x must be whole blocks. It panics on another type: tests choose it.
func Encode(typ gguf.Type, x []float32) []byte {
	le := binary.LittleEndian
	out := make([]byte, 0, len(x)/typ.BlockSize()*typ.BlockBytes())
	switch typ {
	case gguf.F32:
		for _, v := range x {
			out = le.AppendUint32(out, math.Float32bits(v))
		}
		return out
	case gguf.F16:
		for _, v := range x {
			out = le.AppendUint16(out, half(v))
		}
		return out
	default: // types of blocks
	}
	for ; len(x) > 0; x = x[32:] {
		switch typ {
		case gguf.Q8_0:
			out = appendQ8(out, x[:32])
		case gguf.Q4_0:
			out = appendQ40(out, x[:32])
		case gguf.Q4_1:
			out = appendQ41(out, x[:32])
		default:
			panic(fmt.Sprintf("gguftest: encoding %v is not supported", typ))
		}
	}
	return out
}

func inverse(d float32) float32 {
	if d == 0 {
		return 0
	}
	return 1 / d
}

func appendQ8(out []byte, x []float32) []byte {
	amax := float32(0)
	for _, v := range x {
		amax = max(amax, float32(math.Abs(float64(v))))
	}
	d := amax / 127
	out = binary.LittleEndian.AppendUint16(out, half(d))
	for _, v := range x {
		out = append(out, byte(int8(math.RoundToEven(float64(v*inverse(d))))))
	}
	return out
}

func appendQ40(out []byte, x []float32) []byte {
	far := float32(0)
	for _, v := range x {
		if math.Abs(float64(v)) > math.Abs(float64(far)) {
			far = v
		}
	}
	d := far / -8
	out = binary.LittleEndian.AppendUint16(out, half(d))
	return appendNibbles(out, x, func(v float32) byte { return byte(min(15, int8(v*inverse(d)+8.5))) })
}

func appendQ41(out []byte, x []float32) []byte {
	lo, hi := x[0], x[0]
	for _, v := range x {
		lo, hi = min(lo, v), max(hi, v)
	}
	d := (hi - lo) / 15
	out = binary.LittleEndian.AppendUint16(out, half(d))
	out = binary.LittleEndian.AppendUint16(out, half(lo))
	return appendNibbles(out, x, func(v float32) byte { return byte(min(15, int8((v-lo)*inverse(d)+0.5))) })
}

// appendNibbles packs columns 0-15 into low and 16-31 into high nibbles.
func appendNibbles(out []byte, x []float32, q func(float32) byte) []byte {
	for i := range 16 {
		out = append(out, q(x[i])|q(x[16+i])<<4)
	}
	return out
}

// half converts to IEEE binary16, to nearest even.
func half(f float32) uint16 {
	b := math.Float32bits(f)
	sign := uint16(b >> 16 & 0x8000)
	e := int(b>>23&0xff) - 127 + 15
	m := b & 0x7fffff
	switch {
	case e >= 31:
		return sign | 0x7c00
	case e < -10:
		return sign
	case e <= 0:
		m |= 0x800000
		return sign | roundOff(m, uint(14-e))
	}
	return sign + uint16(e)<<10 + roundOff(m, 13)
}

// roundOff drops the low n bits of m, to nearest even.
func roundOff(m uint32, n uint) uint16 {
	r, rem, middle := m>>n, m&(1<<n-1), uint32(1)<<(n-1)
	if rem > middle || rem == middle && r&1 == 1 {
		r++
	}
	return uint16(r)
}
