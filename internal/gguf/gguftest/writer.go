// Package gguftest makes GGUF files for tests: a plain writer of keys and
// tensors, and seeded synthetic models small enough to run in milliseconds.
package gguftest

import (
	"encoding/binary"
	"math"
	"slices"

	"tandem/internal/gguf"
)

// A Writer collects metadata and tensors and lays them out as a GGUF file.
// It checks nothing, so that broken files can be made too. The zero value
// writes version 3 with an alignment of 32.
type Writer struct {
	Version uint32 // 0: 3
	Align   uint64 // 0: 32; does not write the key general.alignment

	entries []entry
	tensors []tensor
}

// entry is one key with its value in file form.
type entry struct {
	key    string
	b      []byte
	fields []int // offsets of the entry's fields in b
}

type tensor struct {
	name string
	dims []uint64
	typ  gguf.Type
	data []byte
}

// value type numbers of the format.
const (
	typeUint32  = 4
	typeInt32   = 5
	typeFloat32 = 6
	typeBool    = 7
	typeString  = 8
	typeArray   = 9
)

func (e *entry) u32(v uint32) { e.b = binary.LittleEndian.AppendUint32(e.b, v) }
func (e *entry) u64(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }

func (e *entry) str(s string) {
	e.u64(uint64(len(s)))
	e.b = append(e.b, s...)
}

func (e *entry) mark() { e.fields = append(e.fields, len(e.b)) }

// key begins an entry; what is appended to it next is the value.
func (w *Writer) key(key string, typ uint32) *entry {
	w.entries = append(w.entries, entry{key: key})
	e := &w.entries[len(w.entries)-1]
	e.mark()
	e.str(key)
	e.mark()
	e.u32(typ)
	e.mark()
	return e
}

// array begins an array of n elements.
func (w *Writer) array(key string, typ uint32, n int) *entry {
	e := w.key(key, typeArray)
	e.u32(typ)
	e.mark()
	e.u64(uint64(n))
	return e
}

// Drop takes every entry of key out again.
func (w *Writer) Drop(key string) {
	w.entries = slices.DeleteFunc(w.entries, func(e entry) bool { return e.key == key })
}

// DropTensor takes the tensors called name out again.
func (w *Writer) DropTensor(name string) {
	w.tensors = slices.DeleteFunc(w.tensors, func(t tensor) bool { return t.name == name })
}

// Raw appends a key with a value already in its file form.
func (w *Writer) Raw(key string, typ uint32, value []byte) {
	e := w.key(key, typ)
	e.b = append(e.b, value...)
}

// Uint32 appends a key of type uint32.
func (w *Writer) Uint32(key string, v uint32) { w.key(key, typeUint32).u32(v) }

// Float32 appends a key of type float32.
func (w *Writer) Float32(key string, v float32) { w.key(key, typeFloat32).u32(math.Float32bits(v)) }

// Bool appends a key of type bool.
func (w *Writer) Bool(key string, v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	w.Raw(key, typeBool, []byte{b})
}

// String appends a key of type string.
func (w *Writer) String(key, v string) { w.key(key, typeString).str(v) }

// Strings appends an array of strings.
func (w *Writer) Strings(key string, v []string) {
	e := w.array(key, typeString, len(v))
	for _, s := range v {
		e.str(s)
	}
}

// Int32s appends an array of int32.
func (w *Writer) Int32s(key string, v []int32) {
	e := w.array(key, typeInt32, len(v))
	for _, x := range v {
		e.u32(uint32(x))
	}
}

// Tensor appends a tensor. Dims holds the contiguous dimension first.
func (w *Writer) Tensor(name string, typ gguf.Type, dims []uint64, data []byte) {
	w.tensors = append(w.tensors, tensor{name, dims, typ, data})
}

// Bytes returns the file.
func (w *Writer) Bytes() []byte {
	b, _ := w.layout()
	return b
}

// Fields returns the offsets in Bytes at which a field of the header or of
// the tensor table begins, ascending.
func (w *Writer) Fields() []int {
	_, f := w.layout()
	return f
}

func (w *Writer) layout() (b []byte, fields []int) {
	le := binary.LittleEndian
	version, align := w.Version, w.Align
	if version == 0 {
		version = 3
	}
	if align == 0 {
		align = 32
	}
	pad := func(n uint64) uint64 { return (n + align - 1) / align * align }

	b = append(b, "GGUF"...)
	b = le.AppendUint32(b, version)
	b = le.AppendUint64(b, uint64(len(w.tensors)))
	b = le.AppendUint64(b, uint64(len(w.entries)))
	fields = append(fields, 0, 4, 8, 16)
	for _, e := range w.entries {
		for _, f := range e.fields {
			fields = append(fields, len(b)+f)
		}
		b = append(b, e.b...)
	}
	off := uint64(0)
	for _, t := range w.tensors {
		fields = append(fields, len(b))
		b = le.AppendUint64(b, uint64(len(t.name)))
		b = append(b, t.name...)
		fields = append(fields, len(b))
		b = le.AppendUint32(b, uint32(len(t.dims)))
		for _, d := range t.dims {
			fields = append(fields, len(b))
			b = le.AppendUint64(b, d)
		}
		fields = append(fields, len(b))
		b = le.AppendUint32(b, uint32(t.typ))
		fields = append(fields, len(b))
		b = le.AppendUint64(b, off)
		off = pad(off + uint64(len(t.data)))
	}
	for _, t := range w.tensors {
		b = append(b, make([]byte, pad(uint64(len(b)))-uint64(len(b)))...)
		fields = append(fields, len(b))
		b = append(b, t.data...)
	}
	return b, fields
}
