package gguf

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A value says where a metadata value lies. Its extent was checked by the
// parser.
type value struct {
	kind, elem kind
	n          uint64 // elements of an array
	off, end   uint64 // of the value, or of an array's first element
}

func (f *File) lookup(key string) (value, error) {
	v, ok := f.values[key]
	if !ok {
		return v, &ValueError{Name: f.name, Key: key, Err: ErrNoKey}
	}
	return v, nil
}

func (f *File) wrong(key string, v value, want string) error {
	have := v.kind.String()
	if v.kind == kindArray {
		have = "array of " + v.elem.String()
	}
	return &ValueError{Name: f.name, Key: key, Offset: v.off, Err: fmt.Errorf("is %s, not %s", have, want)}
}

// integer decodes an integer of kind k at b; ok is false for other kinds. neg
// tells a negative value, whose two's complement u then is.
func integer(k kind, b []byte) (u uint64, neg, ok bool) {
	le := binary.LittleEndian
	var s int64
	switch k {
	case kindUint8:
		return uint64(b[0]), false, true
	case kindUint16:
		return uint64(le.Uint16(b)), false, true
	case kindUint32:
		return uint64(le.Uint32(b)), false, true
	case kindUint64:
		return le.Uint64(b), false, true
	case kindInt8:
		s = int64(int8(b[0]))
	case kindInt16:
		s = int64(int16(le.Uint16(b)))
	case kindInt32:
		s = int64(int32(le.Uint32(b)))
	case kindInt64:
		s = int64(le.Uint64(b))
	default:
		return 0, false, false
	}
	return uint64(s), s < 0, true
}

func float(k kind, b []byte) (float64, bool) {
	switch k {
	case kindFloat32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))), true
	case kindFloat64:
		return math.Float64frombits(binary.LittleEndian.Uint64(b)), true
	default:
		return 0, false
	}
}

// String returns a string value.
func (f *File) String(key string) (string, error) {
	v, err := f.lookup(key)
	if err != nil {
		return "", err
	}
	if v.kind != kindString {
		return "", f.wrong(key, v, "a string")
	}
	return string(f.data[v.off+8 : v.end]), nil
}

// Uint returns a non-negative integer value of any width.
func (f *File) Uint(key string) (uint64, error) {
	v, err := f.lookup(key)
	if err != nil {
		return 0, err
	}
	u, neg, ok := integer(v.kind, f.data[v.off:v.end])
	if !ok {
		return 0, f.wrong(key, v, "an integer")
	}
	if neg {
		return 0, &ValueError{Name: f.name, Key: key, Offset: v.off, Err: fmt.Errorf("is negative: %d", int64(u))}
	}
	return u, nil
}

// Int returns an integer value of any width.
func (f *File) Int(key string) (int64, error) {
	v, err := f.lookup(key)
	if err != nil {
		return 0, err
	}
	u, neg, ok := integer(v.kind, f.data[v.off:v.end])
	if !ok {
		return 0, f.wrong(key, v, "an integer")
	}
	if !neg && u > math.MaxInt64 {
		return 0, &ValueError{Name: f.name, Key: key, Offset: v.off, Err: fmt.Errorf("is too large: %d", u)}
	}
	return int64(u), nil
}

// Float returns a float32 or float64 value.
func (f *File) Float(key string) (float64, error) {
	v, err := f.lookup(key)
	if err != nil {
		return 0, err
	}
	x, ok := float(v.kind, f.data[v.off:v.end])
	if !ok {
		return 0, f.wrong(key, v, "a float")
	}
	return x, nil
}

// Bool returns a boolean value.
func (f *File) Bool(key string) (bool, error) {
	v, err := f.lookup(key)
	if err != nil {
		return false, err
	}
	if v.kind != kindBool {
		return false, f.wrong(key, v, "a boolean")
	}
	return f.data[v.off] != 0, nil
}

// array returns the array value of key.
func (f *File) array(key, want string) (value, error) {
	v, err := f.lookup(key)
	if err != nil {
		return v, err
	}
	if v.kind != kindArray {
		return v, f.wrong(key, v, want)
	}
	return v, nil
}

// Len returns the number of elements of an array of any element type.
func (f *File) Len(key string) (int, error) {
	v, err := f.array(key, "an array")
	return int(v.n), err
}

// Strings returns an array of strings. Its memory is one copy of the bytes.
func (f *File) Strings(key string) ([]string, error) {
	v, err := f.array(key, "an array of strings")
	if err != nil {
		return nil, err
	}
	if v.elem != kindString {
		return nil, f.wrong(key, v, "an array of strings")
	}
	raw := string(f.data[v.off:v.end])
	out := make([]string, v.n)
	pos := uint64(0)
	for i := range out {
		n := binary.LittleEndian.Uint64(f.data[v.off+pos:])
		pos += 8
		out[i] = raw[pos : pos+n]
		pos += n
	}
	return out, nil
}

// Ints returns an array of integers of any width.
func (f *File) Ints(key string) ([]int64, error) {
	v, err := f.array(key, "an array of integers")
	if err != nil {
		return nil, err
	}
	out := make([]int64, 0, v.n)
	for i := range v.n {
		u, neg, ok := integer(v.elem, f.data[v.off+i*kindSizes[v.elem]:v.end])
		if !ok {
			return nil, f.wrong(key, v, "an array of integers")
		}
		if !neg && u > math.MaxInt64 {
			return nil, &ValueError{Name: f.name, Key: key, Offset: v.off, Err: fmt.Errorf("element %d is too large: %d", i, u)}
		}
		out = append(out, int64(u))
	}
	return out, nil
}
