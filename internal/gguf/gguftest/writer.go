// Package gguftest makes GGUF files for tests: a plain writer of keys and
// tensors, and seeded synthetic models small enough to run in milliseconds.
package gguftest

import (
	"encoding/binary"
	"math"

	"tandem/internal/gguf"
)

// A Writer collects metadata and tensors and lays them out as a GGUF file.
// It checks nothing, so that broken files can be made too. The zero value
// writes version 3 with an alignment of 32.
type Writer struct {
	Version uint32 // 0: 3
	Align   uint64 // 0: 32; does not write the key general.alignment

	kv      []byte
	keys    uint64
	tensors []tensor
	fields  []int // offsets of the header fields in kv
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

func (w *Writer) u32(v uint32) { w.kv = binary.LittleEndian.AppendUint32(w.kv, v) }
func (w *Writer) u64(v uint64) { w.kv = binary.LittleEndian.AppendUint64(w.kv, v) }

func (w *Writer) str(s string) {
	w.u64(uint64(len(s)))
	w.kv = append(w.kv, s...)
}

func (w *Writer) key(key string, typ uint32) {
	w.mark()
	w.str(key)
	w.mark()
	w.u32(typ)
	w.mark()
	w.keys++
}

func (w *Writer) mark() { w.fields = append(w.fields, len(w.kv)) }

// Raw appends a key with a value already in its file form.
func (w *Writer) Raw(key string, typ uint32, value []byte) {
	w.key(key, typ)
	w.kv = append(w.kv, value...)
}

// Uint32 appends a key of type uint32.
func (w *Writer) Uint32(key string, v uint32) { w.key(key, typeUint32); w.u32(v) }

// Float32 appends a key of type float32.
func (w *Writer) Float32(key string, v float32) { w.key(key, typeFloat32); w.u32(math.Float32bits(v)) }

// Bool appends a key of type bool.
func (w *Writer) Bool(key string, v bool) {
	w.key(key, typeBool)
	b := byte(0)
	if v {
		b = 1
	}
	w.kv = append(w.kv, b)
}

// String appends a key of type string.
func (w *Writer) String(key, v string) { w.key(key, typeString); w.str(v) }

// Strings appends an array of strings.
func (w *Writer) Strings(key string, v []string) {
	w.key(key, typeArray)
	w.u32(typeString)
	w.mark()
	w.u64(uint64(len(v)))
	for _, s := range v {
		w.str(s)
	}
}

// Int32s appends an array of int32.
func (w *Writer) Int32s(key string, v []int32) {
	w.key(key, typeArray)
	w.u32(typeInt32)
	w.mark()
	w.u64(uint64(len(v)))
	for _, e := range v {
		w.u32(uint32(e))
	}
}

// Float32s appends an array of float32.
func (w *Writer) Float32s(key string, v []float32) {
	w.key(key, typeArray)
	w.u32(typeFloat32)
	w.mark()
	w.u64(uint64(len(v)))
	for _, e := range v {
		w.u32(math.Float32bits(e))
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
	b = le.AppendUint64(b, w.keys)
	fields = append(fields, 0, 4, 8, 16)
	for _, f := range w.fields {
		fields = append(fields, len(b)+f)
	}
	b = append(b, w.kv...)
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
