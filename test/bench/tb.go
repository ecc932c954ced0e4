package main

import (
	"testing"

	"tandem/test/cluster"
)

// withTB runs f with the helpers that start processes for tests.
func withTB(f func(t testing.TB) error) error { return cluster.Outside("bench", f) }
