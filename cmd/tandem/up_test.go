package main

import (
	"strings"
	"testing"
)

// The value of an engine's flag that stands apart is no model.
func TestEngineArgNeedsItsEqualsSign(t *testing.T) {
	for _, args := range [][]string{
		{"up", "--port", "0", "--sim", "--engine-arg", "--max-model-len", "4096"},
		{"up", "--port", "0", "--decode-arg", "--max-model-len", "no-such-file"},
	} {
		_, err := tandem(t, args...)
		want := "(an engine argument needs an equals sign: " + args[len(args)-3] + " --max-model-len=VALUE)"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v; want %s", args, err, want)
		}
	}
	if _, err := tandem(t, "up", "--port", "0", "--sim", "--engine-arg=--max-model-len=4096", "x"); err == nil || strings.Contains(err.Error(), "equals sign") {
		t.Error(err)
	}
}
