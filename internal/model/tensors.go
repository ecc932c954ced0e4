package model

import (
	"fmt"
	"strings"

	"tandem/internal/compute"
	"tandem/internal/gguf"
)

// tensors hands out the tensors of a file by name, each with its shape
// checked, and knows at the end which were not asked for.
type tensors struct {
	f    *gguf.File
	used map[string]bool
}

// typeOf returns compute's type of a tensor.
func typeOf(t gguf.Type) (compute.Type, bool) {
	switch t {
	case gguf.F32:
		return compute.F32, true
	case gguf.F16:
		return compute.F16, true
	case gguf.Q4_0:
		return compute.Q4_0, true
	case gguf.Q4_1:
		return compute.Q4_1, true
	case gguf.Q8_0:
		return compute.Q8_0, true
	default:
		return 0, false
	}
}

func (t *tensors) fail(format string, args ...any) error {
	return fmt.Errorf("model: loading %s: "+format, append([]any{t.f.Name()}, args...)...)
}

// source is a matrix in the file.
type source struct {
	name       string
	typ        compute.Type
	data       []byte
	rows, cols int
}

// matrix returns the matrix called name, which must have this shape.
func (t *tensors) matrix(name string, rows, cols int) (source, error) {
	x, ok := t.f.Tensor(name)
	if !ok {
		return source{}, t.fail("tensor %q is missing; the metadata asks for %d rows of %d columns", name, rows, cols)
	}
	if len(x.Dims) != 2 || x.Dims[0] != uint64(cols) || x.Dims[1] != uint64(rows) {
		return source{}, t.fail("tensor %q has dimensions %v, the metadata asks for [%d %d]", name, x.Dims, cols, rows)
	}
	typ, ok := typeOf(x.Type)
	if !ok {
		return source{}, t.fail("tensor %q is of type %v: %w (F32, F16, Q4_0, Q4_1, Q8_0 are)", name, x.Type, ErrUnsupported)
	}
	t.used[name] = true
	return source{name: name, typ: typ, data: x.Data, rows: rows, cols: cols}, nil
}

// vector returns the F32 vector called name, which must have n elements.
func (t *tensors) vector(name string, n int) ([]float32, error) {
	x, ok := t.f.Tensor(name)
	if !ok {
		return nil, t.fail("tensor %q is missing; the metadata asks for %d numbers", name, n)
	}
	if len(x.Dims) != 1 || x.Dims[0] != uint64(n) {
		return nil, t.fail("tensor %q has dimensions %v, the metadata asks for [%d]", name, x.Dims, n)
	}
	if x.Type != gguf.F32 {
		return nil, t.fail("tensor %q is of type %v: %w (F32 is)", name, x.Type, ErrUnsupported)
	}
	t.used[name] = true
	v := make([]float32, n)
	compute.Dequantize(v, compute.F32, x.Data)
	return v, nil
}

// rest fails when the file has a tensor that was not asked for: leaving it out
// would compute another model.
func (t *tensors) rest(p *params) error {
	for _, x := range t.f.Tensors() {
		if t.used[x.Name] || strings.HasSuffix(x.Name, ".attn_rot_embd") {
			continue
		}
		var l int
		if _, err := fmt.Sscanf(x.Name, "blk.%d.", &l); err == nil && l >= p.layers {
			return t.fail("tensor %q exists, key %q is %d", x.Name, "llama.block_count", p.layers)
		}
		return t.fail("tensor %q: %w by architecture %q", x.Name, ErrUnsupported, arch)
	}
	return nil
}
