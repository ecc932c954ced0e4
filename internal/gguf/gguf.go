// Package gguf reads GGUF model files over a memory map.
//
// It hides the file format: versions 2 and 3, little-endian. Open walks the
// whole header once and checks every count, length and offset against the
// bytes that are left, so that nothing later can reach outside the file and no
// announced number makes it allocate more than the file could hold. Values are
// decoded when asked for; tensor data is never copied.
//
// A File is immutable after Open and safe for concurrent use until Close, after
// which neither it nor any slice obtained from it may be used. Strings it
// returned stay valid.
package gguf

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
)

// ErrNoKey is matched by the error of a getter whose key is not in the file.
var ErrNoKey = errors.New("key not present")

// ErrShrunk is matched by the error of Guard for a file that was cut while it was
// mapped.
var ErrShrunk = errors.New("the file became shorter while it was read; start again when it is whole, " +
	"and replace a model's file by renaming another, not by writing into it")

// A FormatError says what is wrong with a file and where.
type FormatError struct {
	Name   string // path or name of the file
	Item   string // the metadata key, tensor or header field being read
	Offset uint64 // from the start of the file
	Reason string
}

// Error implements error.
func (e *FormatError) Error() string {
	return fmt.Sprintf("gguf: reading %s: %s at offset %d: %s", e.Name, e.Item, e.Offset, e.Reason)
}

// A ValueError says that a metadata value is missing or not what was asked for.
type ValueError struct {
	Name   string // path or name of the file
	Key    string
	Offset uint64 // of the value; 0 if the key is missing
	Err    error  // ErrNoKey or the reason
}

// Error implements error.
func (e *ValueError) Error() string {
	if errors.Is(e.Err, ErrNoKey) {
		return fmt.Sprintf("gguf: reading %s: key %q: %v", e.Name, e.Key, e.Err)
	}
	return fmt.Sprintf("gguf: reading %s: key %q at offset %d: %v", e.Name, e.Key, e.Offset, e.Err)
}

// Unwrap returns the reason.
func (e *ValueError) Unwrap() error { return e.Err }

// A Tensor is one entry of the tensor table.
type Tensor struct {
	Name string
	// Dims holds 1 to 4 sizes, the contiguous one first: a matrix of Dims[1]
	// rows has Dims[0] columns.
	Dims []uint64
	Type Type
	// Data is the tensor's bytes inside the map. It must not be written.
	Data   []byte
	Offset uint64 // of Data from the start of the file
}

// Elements returns the product of the dimensions.
func (t Tensor) Elements() uint64 {
	n := uint64(1)
	for _, d := range t.Dims {
		n *= d
	}
	return n
}

// A File is an open GGUF file.
type File struct {
	name    string
	data    []byte
	mapped  []byte // nil when the bytes are the caller's
	version uint32
	align   uint64
	dataOff uint64 // of the tensor data from the start of the file
	keys    []string
	values  map[string]value
	tensors []Tensor
	byName  map[string]int
}

// Open maps the file at path and reads its header.
func Open(path string) (*File, error) {
	m, err := mapFile(path)
	if err != nil {
		return nil, fmt.Errorf("gguf: opening %s: %w", path, err)
	}
	f := newFile(path, m)
	f.mapped = m
	if err := f.Guard(f.parse); err != nil {
		return nil, errors.Join(err, unmap(m))
	}
	return f, nil
}

// Parse reads the header of a GGUF file held in memory. The File keeps data;
// name stands for the path in errors.
func Parse(name string, data []byte) (*File, error) {
	f := newFile(name, data)
	if err := f.parse(); err != nil {
		return nil, err
	}
	return f, nil
}

func newFile(name string, data []byte) *File {
	return &File{name: name, data: data, values: map[string]value{}, byName: map[string]int{}}
}

func (f *File) parse() error { return (&parser{name: f.name, b: f.data}).file(f) }

// Guard calls read, which reads the file's bytes or metadata on this goroutine
// alone. Where somebody has cut the file meanwhile, the bytes behind its end are
// gone from the map; touching them ends a process, but read only, with an error
// that matches ErrShrunk.
func (f *File) Guard(read func() error) (err error) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		p := recover()
		if fault, ok := p.(interface {
			runtime.Error
			Addr() uintptr
		}); ok && within(f.mapped, fault.Addr()) {
			err = fmt.Errorf("gguf: reading %s: %w", f.name, ErrShrunk)
		} else if p != nil {
			panic(p)
		}
	}()
	return read()
}

// Close unmaps the file. Closing twice is harmless.
func (f *File) Close() error {
	m := f.mapped
	f.mapped, f.data, f.tensors, f.byName = nil, nil, nil, nil
	if m == nil {
		return nil
	}
	if err := unmap(m); err != nil {
		return fmt.Errorf("gguf: closing %s: %w", f.name, err)
	}
	return nil
}

// DropPages gives the physical pages of the map back. The data can still be
// read; it then comes from the page cache or the disk again.
func (f *File) DropPages() error {
	if f.mapped == nil {
		return nil
	}
	if err := dropPages(f.mapped); err != nil {
		return fmt.Errorf("gguf: dropping pages of %s: %w", f.name, err)
	}
	return nil
}

// Name returns the path given to Open.
func (f *File) Name() string { return f.name }

// Bytes returns the whole file. It must not be written.
func (f *File) Bytes() []byte { return f.data }

// Version returns the format version, 2 or 3.
func (f *File) Version() uint32 { return f.version }

// Alignment returns the alignment of tensor data in bytes.
func (f *File) Alignment() uint64 { return f.align }

// DataOffset returns where tensor data starts, from the start of the file.
func (f *File) DataOffset() uint64 { return f.dataOff }

// Keys returns the metadata keys in file order.
func (f *File) Keys() []string { return slices.Clone(f.keys) }

// Has reports whether the metadata has key.
func (f *File) Has(key string) bool {
	_, ok := f.values[key]
	return ok
}

// Tensor returns the tensor called name.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return f.tensors[i], true
}

// Tensors returns the tensor table in file order. It must not be written.
func (f *File) Tensors() []Tensor { return f.tensors }

// mapFile maps a whole regular file read-only.
func mapFile(path string) (m []byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	if st.Size() < headerBytes {
		return nil, fmt.Errorf("%d bytes are too few for a GGUF header", st.Size())
	}
	if st.Size() != int64(int(st.Size())) {
		return nil, fmt.Errorf("%d bytes are too many for this machine's addresses", st.Size())
	}
	return mapBytes(file, int(st.Size()))
}
