package connector

import (
	"errors"
	"fmt"
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

// H079: a hand-off of another version is refused with both versions; one that
// lacks a key names it; keys to come change nothing.
func TestVersionSkewIsNamed(t *testing.T) {
	own := fmt.Sprint(HandoffVersion)
	for _, c := range []struct {
		name  string
		edit  func(map[string]any)
		wants []string
	}{
		{"the next version", func(m map[string]any) { m[FieldVersion] = HandoffVersion + 1 }, []string{FieldVersion, fmt.Sprint(HandoffVersion + 1), own}},
		{"a version far ahead", func(m map[string]any) { m[FieldVersion] = 900 }, []string{FieldVersion, "900", own}},
		{"version zero", func(m map[string]any) { m[FieldVersion] = 0 }, []string{FieldVersion, "0 is not", own}},
		{"no version", func(m map[string]any) { delete(m, FieldVersion) }, []string{FieldVersion}},
		{"a key renamed", func(m map[string]any) { m["remote_lease_id"] = m[FieldLease]; delete(m, FieldLease) }, []string{FieldLease}},
		{"a key of another type", func(m map[string]any) { m[FieldTokens] = "48" }, []string{FieldTokens}},
	} {
		m := object(t, sampleHandoff())
		c.edit(m)
		h, err := ParseHandoff(text(t, m))
		if err == nil || h != nil {
			t.Errorf("%s: accepted", c.name)
			continue
		}
		for _, want := range c.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", c.name, err, want)
			}
		}
	}
	m := object(t, sampleHandoff())
	m["remote_key_of_tomorrow"] = map[string]any{"x": []int{1}}
	if h, err := ParseHandoff(text(t, m)); err != nil || !h.Vouched([]byte(testToken)) {
		t.Errorf("a key to come: %v", err)
	}
}
