package gguf

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Caps that hold whatever the size of the file.
const (
	headerBytes  = 24 // magic, version, two counts
	maxKeys      = 1 << 16
	maxTensors   = 1 << 18
	maxKeyBytes  = 1 << 16
	maxNameBytes = 1 << 10
	maxDims      = 4
	maxNesting   = 3 // arrays inside arrays
	defaultAlign = 32
	maxAlign     = 1 << 20

	minKeyBytes    = 8 + 4 + 1         // key length, value type, a one-byte value
	minTensorBytes = 8 + 4 + 8 + 4 + 8 // name length, dimension count, one dimension, type, offset
)

// A parser walks a file's header. Every take checks what is left first; item
// names what is being read, for errors.
type parser struct {
	name string
	b    []byte
	pos  uint64 // never above len(b)
	item string
}

func (p *parser) fail(at uint64, format string, args ...any) error {
	return &FormatError{Name: p.name, Item: p.item, Offset: at, Reason: fmt.Sprintf(format, args...)}
}

func (p *parser) left() uint64 { return uint64(len(p.b)) - p.pos }

// need fails unless n more bytes are there.
func (p *parser) need(n uint64) error {
	if n > p.left() {
		return p.fail(p.pos, "needs %d bytes, the file has %d left", n, p.left())
	}
	return nil
}

func (p *parser) u32() (uint32, error) {
	if err := p.need(4); err != nil {
		return 0, err
	}
	p.pos += 4
	return binary.LittleEndian.Uint32(p.b[p.pos-4:]), nil
}

func (p *parser) u64() (uint64, error) {
	if err := p.need(8); err != nil {
		return 0, err
	}
	p.pos += 8
	return binary.LittleEndian.Uint64(p.b[p.pos-8:]), nil
}

// skipString moves past a string and returns its bytes.
func (p *parser) skipString() ([]byte, error) {
	n, err := p.u64()
	if err != nil {
		return nil, err
	}
	if n > p.left() {
		return nil, p.fail(p.pos-8, "string of %d bytes, the file has %d left", n, p.left())
	}
	p.pos += n
	return p.b[p.pos-n : p.pos], nil
}

// shortString is skipString for names, with a cap on their length.
func (p *parser) shortString(limit uint64) (string, error) {
	at := p.pos
	s, err := p.skipString()
	if err != nil {
		return "", err
	}
	if uint64(len(s)) > limit {
		return "", p.fail(at, "name of %d bytes, at most %d are allowed", len(s), limit)
	}
	if len(s) == 0 {
		return "", p.fail(at, "empty name")
	}
	return string(s), nil
}

func (p *parser) file(f *File) error {
	p.item = "header"
	if err := p.need(headerBytes); err != nil {
		return err
	}
	if string(p.b[:4]) != "GGUF" {
		return p.fail(0, "magic is %q, not \"GGUF\"", p.b[:4])
	}
	p.pos = 4
	version, err := p.u32()
	if err != nil {
		return err
	}
	if version != 2 && version != 3 {
		if v := bits.ReverseBytes32(version); v == 2 || v == 3 {
			return p.fail(4, "the file is big-endian; convert it to little-endian")
		}
		return p.fail(4, "version %d; versions 2 and 3 are read", version)
	}
	f.version = version
	tensors, err := p.count("tensor count", minTensorBytes, maxTensors)
	if err != nil {
		return err
	}
	keys, err := p.count("key count", minKeyBytes, maxKeys)
	if err != nil {
		return err
	}
	for i := range keys {
		if err := p.keyValue(f, i); err != nil {
			return err
		}
	}
	if f.align, err = p.alignment(f); err != nil {
		return err
	}
	for i := range tensors {
		if err := p.tensorInfo(f, i); err != nil {
			return err
		}
	}
	return p.tensorData(f)
}

// count reads a number of entries of at least size bytes each.
func (p *parser) count(item string, size, limit uint64) (uint64, error) {
	p.item = item
	at := p.pos
	n, err := p.u64()
	if err != nil {
		return 0, err
	}
	if n > limit {
		return 0, p.fail(at, "%d, at most %d are allowed", n, limit)
	}
	if n > p.left()/size {
		return 0, p.fail(at, "%d entries of at least %d bytes, the file has %d left", n, size, p.left())
	}
	return n, nil
}

func (p *parser) keyValue(f *File, i uint64) error {
	p.item = fmt.Sprintf("key %d", i)
	at := p.pos
	key, err := p.shortString(maxKeyBytes)
	if err != nil {
		return err
	}
	p.item = fmt.Sprintf("key %q", key)
	if _, dup := f.values[key]; dup {
		return p.fail(at, "the key occurs twice")
	}
	at = p.pos
	k, err := p.u32()
	if err != nil {
		return err
	}
	v := value{kind: kind(k), off: p.pos}
	switch {
	case !v.kind.known():
		return p.fail(at, "unknown value type %d", k)
	case v.kind == kindArray:
		v, err = p.array(0)
	case v.kind == kindString:
		_, err = p.skipString()
	default:
		err = p.scalars(v.kind, 1)
	}
	if err != nil {
		return err
	}
	v.end = p.pos
	f.values[key] = v
	f.keys = append(f.keys, key)
	return nil
}

// scalars moves past n values of a fixed size.
func (p *parser) scalars(k kind, n uint64) error {
	size := kindSizes[k]
	if n > p.left()/size {
		return p.fail(p.pos, "%d values of type %v, the file has %d bytes left", n, k, p.left())
	}
	if k == kindBool {
		for i, b := range p.b[p.pos : p.pos+n] {
			if b > 1 {
				return p.fail(p.pos+uint64(i), "boolean of value %d", b)
			}
		}
	}
	p.pos += n * size
	return nil
}

// array moves past an array and returns what and where its elements are.
func (p *parser) array(depth int) (value, error) {
	at := p.pos
	if depth == maxNesting {
		return value{}, p.fail(at, "arrays nested deeper than %d", maxNesting)
	}
	k, err := p.u32()
	if err != nil {
		return value{}, err
	}
	n, err := p.u64()
	if err != nil {
		return value{}, err
	}
	v := value{kind: kindArray, elem: kind(k), n: n, off: p.pos}
	switch {
	case !v.elem.known():
		return value{}, p.fail(at, "array of unknown value type %d", k)
	case v.elem == kindString:
		if n > p.left()/8 {
			return value{}, p.fail(at, "array of %d strings, the file has %d bytes left", n, p.left())
		}
		for range n {
			if _, err := p.skipString(); err != nil {
				return value{}, err
			}
		}
	case v.elem == kindArray:
		if n > p.left()/12 {
			return value{}, p.fail(at, "array of %d arrays, the file has %d bytes left", n, p.left())
		}
		for range n {
			if _, err := p.array(depth + 1); err != nil {
				return value{}, err
			}
		}
	default:
		if err := p.scalars(v.elem, n); err != nil {
			return value{}, err
		}
	}
	return v, nil
}

func (p *parser) alignment(f *File) (uint64, error) {
	const key = "general.alignment"
	if !f.Has(key) {
		return defaultAlign, nil
	}
	a, err := f.Uint(key)
	if err != nil {
		return 0, err
	}
	if a == 0 || a&(a-1) != 0 || a > maxAlign {
		p.item = fmt.Sprintf("key %q", key)
		return 0, p.fail(f.values[key].off, "alignment %d is not a power of two between 1 and %d", a, maxAlign)
	}
	return a, nil
}

// tensorInfo reads one entry of the table. Offset is still relative to the
// tensor data, and Data missing.
func (p *parser) tensorInfo(f *File, i uint64) error {
	p.item = fmt.Sprintf("tensor %d", i)
	at := p.pos
	name, err := p.shortString(maxNameBytes)
	if err != nil {
		return err
	}
	p.item = fmt.Sprintf("tensor %q", name)
	if _, dup := f.byName[name]; dup {
		return p.fail(at, "the tensor occurs twice")
	}
	at = p.pos
	nd, err := p.u32()
	if err != nil {
		return err
	}
	if nd == 0 || nd > maxDims {
		return p.fail(at, "%d dimensions, 1 to %d are allowed", nd, maxDims)
	}
	t := Tensor{Name: name, Dims: make([]uint64, nd)}
	for d := range t.Dims {
		at = p.pos
		if t.Dims[d], err = p.u64(); err != nil {
			return err
		}
		if t.Dims[d] == 0 {
			return p.fail(at, "dimension %d is zero", d)
		}
	}
	at = p.pos
	typ, err := p.u32()
	if err != nil {
		return err
	}
	t.Type = Type(typ)
	if t.Type.BlockSize() == 0 {
		return p.fail(at, "unknown tensor type %d", typ)
	}
	if t.Offset, err = p.u64(); err != nil {
		return err
	}
	f.byName[name] = len(f.tensors)
	f.tensors = append(f.tensors, t)
	return nil
}

// tensorData finds where tensor data starts and gives every tensor its bytes.
func (p *parser) tensorData(f *File) error {
	p.item = "tensor data"
	start, over := bits.Add64(p.pos, f.align-1, 0)
	start &^= f.align - 1
	if over != 0 || start > uint64(len(p.b)) && len(f.tensors) > 0 {
		return p.fail(p.pos, "the aligned start %d is beyond the end of the file", start)
	}
	f.dataOff = start
	for i := range f.tensors {
		t := &f.tensors[i]
		p.item = fmt.Sprintf("tensor %q", t.Name)
		size, err := p.tensorBytes(t)
		if err != nil {
			return err
		}
		if t.Offset%f.align != 0 {
			return p.fail(start, "data offset %d is not a multiple of the alignment %d", t.Offset, f.align)
		}
		off, over := bits.Add64(start, t.Offset, 0)
		end, over2 := bits.Add64(off, size, 0)
		if over != 0 || over2 != 0 || end > uint64(len(p.b)) {
			return p.fail(start, "%d bytes at data offset %d reach beyond the end of the file (%d bytes)", size, t.Offset, len(p.b))
		}
		t.Data, t.Offset = p.b[off:end:end], off
	}
	return nil
}

// tensorBytes multiplies the dimensions out, each product checked.
func (p *parser) tensorBytes(t *Tensor) (uint64, error) {
	block := uint64(t.Type.BlockSize())
	if t.Dims[0]%block != 0 {
		return 0, p.fail(p.pos, "%d columns of type %v are not whole blocks of %d", t.Dims[0], t.Type, block)
	}
	size, dims := t.Dims[0]/block, t.Dims[1:]
	over, size := bits.Mul64(size, uint64(t.Type.BlockBytes()))
	for _, d := range dims {
		if over != 0 {
			break
		}
		over, size = bits.Mul64(size, d)
	}
	if over != 0 {
		return 0, p.fail(p.pos, "the size of dimensions %v overflows", t.Dims)
	}
	return size, nil
}
