package connector

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// H110: engines that differ in any one factor are refused before a claim, with
// its name and both values; what may differ is no obstacle.
func TestEveryFactorIsRefusedByName(t *testing.T) {
	own := []Factor{
		{"model", "tiny"}, {"arithmetic", "1"}, {"architecture", "llama"}, {"mode", "exact"}, {"context scaling", "none"}, {"rotary base", "10000"},
	}
	with := func(c *Config) { c.Fingerprint = slices.Clone(own) }
	names := func() []string {
		var out []string
		for _, f := range newFabric().engine(t, "p:1", 1, 1, 8, with).Factors() {
			out = append(out, f.Name)
		}
		return out
	}()
	if len(names) < 10 {
		t.Fatalf("factors %v", names)
	}
	for i, name := range names {
		f := newFabric()
		p, d := f.engine(t, "p:1", 1, 1, 8, with), f.engine(t, "d:1", 1, 1, 8, with)
		d.factors = d.Factors()
		before := d.factors[i].Value
		d.factors[i].Value = "another"
		tokens := prompt(32, 1)
		h, _ := p.grant(t, tokens, 7)
		r := d.load(t, "r", h, tokens, d.blocksFor(32, 7))
		fe, ok := errors.AsType[*FactorError](error(r.Err))
		if r.Err == nil || r.Err.Class != ClassIncompatible || !ok || fe.Factor != name || f.claims.Load() != 0 || f.tiles.Load() != 0 {
			t.Errorf("%s: %+v", name, r)
			continue
		}
		for _, want := range []string{name, before, "another"} {
			if !strings.Contains(r.Err.Error(), want) {
				t.Errorf("%s: %q lacks %q", name, r.Err, want)
			}
		}
	}
	f := newFabric()
	p := f.engine(t, "p:1", 2, 1, 64, with)
	d := f.engine(t, "d:1", 4, 4, 16, with, func(c *Config) { c.Copiers = 3 })
	tokens := prompt(32, 1)
	h, pb := p.grant(t, tokens, 7)
	db := d.blocksFor(32, 7)
	if r := d.load(t, "r", h, tokens, db); r.Err != nil {
		t.Fatalf("other ranks, blocks, pool and threads: %+v", r)
	}
	sameKV(t, p, d, pb, db, 0, 2)
}
