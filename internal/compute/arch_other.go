//go:build !amd64

package compute

func archKernels() []*Kernels { return nil }

// pause lets a spinning thread take a breath.
//
//go:noinline
func pause(n int) {
	for range n {
	}
}
