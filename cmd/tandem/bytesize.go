package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A byteSize is a number of bytes that flags write as 512MiB or 2GiB.
type byteSize int64

var byteUnits = []struct {
	name string
	size int64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}}

// String implements pflag.Value.
func (b *byteSize) String() string {
	for _, u := range []int{2, 1, 0} {
		if size := byteUnits[u].size; int64(*b) >= size && int64(*b)%size == 0 {
			return strconv.FormatInt(int64(*b)/size, 10) + byteUnits[u].name
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Type implements pflag.Value.
func (*byteSize) Type() string { return "bytes" }

// Set implements pflag.Value.
func (b *byteSize) Set(s string) error {
	text, unit := strings.TrimSpace(s), int64(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			text, unit = strings.TrimSpace(rest), u.size
			break
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v <= 0 || v*float64(unit) > 1<<50 {
		return fmt.Errorf("%q: want a size such as 512MiB or 2GiB", s)
	}
	*b = byteSize(v * float64(unit))
	return nil
}
