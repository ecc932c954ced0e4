package connector

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"tandem/internal/connector/core"
	"tandem/internal/kv"
)

func sampleHandoff() *Handoff {
	h := &Handoff{
		EngineID: "p0", RequestID: "cmpl-1-0-abcdef01", Incarnation: Incarnation{1, 2}, Lease: LeaseID{3, 4}, Epoch: 1,
		TP: 2, BlockTokens: 16, Tokens: 40, Digest: TokenDigest(prompt(40, 1)), Blocks: []kv.BlockID{7, 3, 9},
		Addr: "10.0.0.1:5600", Version: HandoffVersion, Host: "10.0.0.1", Port: 5600,
	}
	h.Sign([]byte(testToken))
	return h
}

// object returns h's JSON object for editing.
func object(t testing.TB, h *Handoff) map[string]any {
	t.Helper()
	raw, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	dec := json.NewDecoder(strings.NewReader(string(raw)))
	dec.UseNumber()
	if err := dec.Decode(&m); err != nil {
		t.Fatal(err)
	}
	return m
}

func text(t testing.TB, m map[string]any) []byte {
	t.Helper()
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestHandoffRoundTrip(t *testing.T) {
	h := sampleHandoff()
	m := object(t, h)
	m["x_unknown"] = map[string]any{"deep": []int{1}}
	m["remote_blocks_expiry_time"] = nil
	got, err := ParseHandoff(text(t, m))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(h, got); d != "" {
		t.Fatal(d)
	}
	if !got.Vouched([]byte(testToken)) || got.Vouched([]byte("another token of some length")) || got.Vouched(nil) {
		t.Fatal("MAC")
	}
}

func TestHandoffAcceptsWhatProxiesDo(t *testing.T) {
	m := object(t, sampleHandoff())
	m[FieldHost], m[FieldPort] = "rewritten.example", 1
	m[FieldBlockIDs] = []int{7, 3, 9} // the flat form
	h, err := ParseHandoff(text(t, m))
	if err != nil || !h.Vouched([]byte(testToken)) {
		t.Fatalf("%v", err)
	}
	m[FieldHost], m[FieldPort] = nil, nil
	if h, err = ParseHandoff(text(t, m)); err != nil || !h.Vouched([]byte(testToken)) {
		t.Fatalf("%v", err)
	}
}

func TestParamsThatOfferNothing(t *testing.T) {
	for _, c := range []struct {
		raw    string
		decode bool
	}{
		{"", false},
		{"null", false},
		{" {} ", false},
		{`{"do_remote_prefill":false}`, false},
		{`{"do_remote_prefill":null,"do_remote_decode":null}`, false},
		{`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,` +
			`"remote_host":null,"remote_port":null}`, true},
		{`{"do_remote_prefill":false,"remote_port":"ignored"}`, false},
	} {
		p, err := ParseParams([]byte(c.raw))
		if err != nil || p.Handoff != nil || p.RemoteDecode != c.decode {
			t.Errorf("%s: %+v, %v", c.raw, p, err)
		}
	}
}

func TestEverySignedFieldChangesTheMAC(t *testing.T) {
	edits := map[string]func(*Handoff){
		FieldVersion:     func(h *Handoff) { h.Version++ },
		FieldEngineID:    func(h *Handoff) { h.EngineID += "x" },
		FieldRequestID:   func(h *Handoff) { h.RequestID += "x" },
		FieldAddr:        func(h *Handoff) { h.Addr = "10.0.0.2:5600" },
		FieldIncarnation: func(h *Handoff) { h.Incarnation[15]++ },
		FieldLease:       func(h *Handoff) { h.Lease[15]++ },
		FieldEpoch:       func(h *Handoff) { h.Epoch++ },
		FieldTP:          func(h *Handoff) { h.TP++ },
		FieldBlockSize:   func(h *Handoff) { h.BlockTokens *= 2 },
		FieldTokens:      func(h *Handoff) { h.Tokens-- },
		FieldDigest:      func(h *Handoff) { h.Digest[31]++ },
		FieldBlockIDs:    func(h *Handoff) { h.Blocks = append(slices.Clone(h.Blocks), 1) },
		"order of ids":   func(h *Handoff) { h.Blocks = []kv.BlockID{3, 7, 9} },
		"border of texts": func(h *Handoff) {
			h.RequestID, h.EngineID = h.RequestID[1:], h.EngineID+kv.EngineID(h.RequestID[:1])
		},
		FieldMAC: func(h *Handoff) { h.MAC[0]++ },
	}
	for name, edit := range edits {
		h := sampleHandoff()
		edit(h)
		if h.Vouched([]byte(testToken)) {
			t.Errorf("%s can be changed", name)
		}
	}
	h := sampleHandoff()
	h.Host, h.Port = "else", 9
	if !h.Vouched([]byte(testToken)) {
		t.Error("host and port are not signed: proxies rewrite them")
	}
}

// damaged lists edits of a genuine hand-off and the field that is named.
func damaged() map[string]func(map[string]any) string {
	set := func(field string, v any) func(map[string]any) string {
		return func(m map[string]any) string { m[field] = v; return field }
	}
	drop := func(field string) func(map[string]any) string {
		return func(m map[string]any) string { delete(m, field); return field }
	}
	out := map[string]func(map[string]any) string{
		"version to come":      set(FieldVersion, HandoffVersion+1),
		"port zero":            set(FieldPort, 0),
		"port too high":        set(FieldPort, 70000),
		"port as text":         set(FieldPort, "5600"),
		"ranks 2^31":           set(FieldTP, 1<<31),
		"no ranks":             set(FieldTP, 0),
		"negative tokens":      set(FieldTokens, -1),
		"too many tokens":      set(FieldTokens, 49),
		"huge tokens":          set(FieldTokens, json.Number("1e300")),
		"fractional tokens":    set(FieldTokens, 1.5),
		"negative id":          set(FieldBlockIDs, [][]int{{7, -3, 9}}),
		"huge id":              set(FieldBlockIDs, [][]int{{7, 1 << 40, 9}}),
		"fractional id":        set(FieldBlockIDs, [][]float64{{7, 3.5, 9}}),
		"text id":              set(FieldBlockIDs, []string{"7"}),
		"two groups":           set(FieldBlockIDs, [][]int{{7}, {3}}),
		"nested too deep":      set(FieldBlockIDs, [][][]int{{{7}}}),
		"flat and nested":      set(FieldBlockIDs, []any{7, []int{3}}),
		"nested and flat":      set(FieldBlockIDs, []any{[]int{3}, 7}),
		"ids as object":        set(FieldBlockIDs, map[string]int{"a": 1}),
		"ids as number":        set(FieldBlockIDs, 7),
		"no ids":               set(FieldBlockIDs, [][]int{{}}),
		"block size 17":        set(FieldBlockSize, 17),
		"lease too short":      set(FieldLease, "ab"),
		"lease no hex":         set(FieldLease, strings.Repeat("zz", 16)),
		"digest as list":       set(FieldDigest, []int{1}),
		"address without port": set(FieldAddr, "10.0.0.1"),
		"address of port zero": set(FieldAddr, "10.0.0.1:0"),
		"address without host": set(FieldAddr, ":5600"),
		"engine id too long":   set(FieldEngineID, strings.Repeat("x", 1000)),
		"engine id with break": set(FieldEngineID, "a\nb"),
		"request id as number": set(FieldRequestID, 4),
		"epoch beyond 2^53":    set(FieldEpoch, json.Number("9007199254740992")),
		"flag as text":         set(FieldRemotePrefill, "true"),
		"both flags":           set(FieldRemoteDecode, true),
	}
	for _, f := range []string{
		FieldBlockIDs, FieldEngineID, FieldRequestID, FieldTokens, FieldEpoch, FieldIncarnation, FieldLease,
		FieldBlockSize, FieldDigest, FieldAddr, FieldVersion, FieldMAC,
	} {
		out["without "+f] = drop(f)
		out["null "+f] = set(f, nil)
	}
	return out
}

func TestDamagedHandoffsNameTheField(t *testing.T) {
	cases := damaged()
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		m := object(t, sampleHandoff())
		field := cases[name](m)
		h, err := ParseHandoff(text(t, m))
		he, ok := errors.AsType[*HandoffError](err)
		if !ok || h != nil || he.Field != field {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, raw := range []string{"[", "[]", "7", `"x"`, "{", `{"do_remote_prefill":true}`, "{}x"} {
		if h, err := ParseHandoff([]byte(raw)); err == nil || h != nil {
			t.Errorf("%s: accepted", raw)
		}
	}
}

func TestAbsurdHandoffsTakeNoMemory(t *testing.T) {
	many := func(n int) func(map[string]any) {
		return func(m map[string]any) { m[FieldBlockIDs] = [][]int{make([]int, n)} }
	}
	for name, edit := range map[string]func(map[string]any){
		"a million ids":        many(1_000_000),
		"one id too many":      many(MaxBlocks + 1),
		"10 MiB":               func(m map[string]any) { m["x"] = strings.Repeat("x", 10<<20) },
		"400 KiB of engine id": func(m map[string]any) { m[FieldEngineID] = strings.Repeat("x", 400<<10) },
		"2^31 ranks":           func(m map[string]any) { m[FieldTP] = 1 << 31 },
	} {
		m := object(t, sampleHandoff())
		edit(m)
		raw := text(t, m)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ParseHandoff(raw)
		runtime.ReadMemStats(&after)
		if _, ok := errors.AsType[*HandoffError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%s: allocated %d bytes", name, n)
		}
	}
}

// An engine whose hand-offs nobody would take does not start.
func TestNamesThatNoHandoffCanCarry(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("x", maxEngineID+1), "a\nb", "a\x7f", "a\xff"} {
		c := testConfig(t, name, newArenas(t, 1, 1, 1))
		if err := c.fill(); err == nil || !strings.Contains(err.Error(), "engine_id") {
			t.Errorf("%q: %v", name, err)
		}
	}
	c := testConfig(t, "engine für Ö/1", newArenas(t, 1, 1, 1))
	if err := c.fill(); err != nil {
		t.Error(err)
	}
}

// TestOffersIsClamped: what a load can bring lies in 0 to prompt-1.
func TestOffersIsClamped(t *testing.T) {
	for _, n := range []int{1, 2, 16, 17, 100} {
		for _, offered := range []int{0, 1, n / 2, n - 1, n, n + 1, 10 * n} {
			h := &Handoff{Tokens: offered}
			if got, want := h.Offers(prompt(n, 1)), min(offered, n-1); got != want {
				t.Errorf("%d offered for %d: %d, want %d", offered, n, got, want)
			}
		}
	}
	if (&Handoff{Tokens: 5}).Offers(nil) != 0 {
		t.Error("negative")
	}
}

func TestFingerprintNamesTheFirstDifference(t *testing.T) {
	base := []Factor{{"model", "a"}, {"arch", "llama"}, {"arithmetic", "1"}}
	l := testLayout(1, 1)
	local := fingerprint(append(slices.Clone(base), Factor{"kv_type", l.Elem.String()}), l, 1)
	names := map[string]bool{}
	for _, f := range local {
		if names[f.Name] || strings.ContainsAny(f.Name, " ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			t.Errorf("factor %q stands twice, or is no snake_case", f.Name)
		}
		names[f.Name] = true
	}
	for i := range local {
		other := slices.Clone(local)
		other[i].Value += "x"
		err := compareFactors(local, other)
		fe, ok := errors.AsType[*FactorError](err)
		if !ok || fe.Factor != local[i].Name || !errors.Is(err, ErrIncompatible) {
			t.Errorf("factor %s: %v", local[i].Name, err)
		}
		if factorSum(local) == factorSum(other) {
			t.Errorf("factor %s is not in the sum", local[i].Name)
		}
		missing := slices.Delete(slices.Clone(local), i, i+1)
		for _, err := range []error{compareFactors(local, missing), compareFactors(missing, local)} {
			if fe, ok := errors.AsType[*FactorError](err); !ok || fe.Factor != local[i].Name {
				t.Errorf("without %s: %v", local[i].Name, err)
			}
		}
	}
	if err := compareFactors(local, fingerprint(base, testLayout(4, 4), 4)); err != nil {
		t.Errorf("TP and block size may differ: %v", err)
	}
}

func TestSpansCoverEachLocalHeadOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tp := rapid.SampledFrom([]int{1, 2, 4, 8})
		l, r := tp.Draw(t, "local"), tp.Draw(t, "remote")
		heads := 8 * rapid.IntRange(1, 4).Draw(t, "heads")
		ss, err := core.Spans(heads, l, r)
		if err != nil {
			t.Fatal(err)
		}
		h := 0
		for _, s := range ss {
			for j := range s.Heads {
				if s.Local*(heads/l)+s.LocalHead+j != h || s.Remote*(heads/r)+s.RemoteHead+j != h {
					t.Fatalf("%+v at head %d", s, h)
				}
				h++
			}
		}
		if h != heads || len(ss) != max(l, r) {
			t.Fatal(ss)
		}
	})
	if _, err := core.Spans(4, 3, 1); err == nil {
		t.Fatal("4 heads over 3 ranks")
	}
}

// claimOf returns a claim of lease n.
func claimOf(n byte) core.Claim {
	return core.Claim{
		Incarnation: Incarnation{1}, Lease: LeaseID{n}, Epoch: 1, To: 3, Tokens: 40, Digest: Digest{n},
		Factors: [32]byte{9}, Want: 10 * time.Second,
	}
}

func TestMessagesRoundTrip(t *testing.T) {
	h := &hello{
		Engine: "e", Incarnation: Incarnation{1}, Factors: []Factor{{"a", "b"}}, Epoch: 3, BlockTokens: 32, Heads: 2,
		Ranks: [][]byte{{1, 2}, {3}},
	}
	if got, err := decodeHello(h.encode()); err != nil || !cmp.Equal(h, got) {
		t.Errorf("%v %v", err, cmp.Diff(h, got))
	}
	c := claimOf(1)
	if got, err := decodeClaim(encodeClaim(&c)); err != nil || *got != c {
		t.Errorf("%v %+v", err, got)
	}
	late := c
	late.Want = -time.Second
	if got, err := decodeClaim(encodeClaim(&late)); err != nil || got.Want != 0 {
		t.Errorf("%v: a load whose time is over wants %v", err, got.Want)
	}
	a := &claimAnswer{Verdict: core.VerdictBusy, Limit: 1e9, Sums: []uint64{1, 1 << 63}}
	if got, err := decodeClaimAnswer(a.encode()); err != nil || !cmp.Equal(a, got) {
		t.Errorf("%v %+v", err, got)
	}
	for _, m := range []struct {
		body   []byte
		decode func([]byte) error
	}{
		{h.encode(), func(b []byte) error { _, err := decodeHello(b); return err }},
		{encodeClaim(&c), func(b []byte) error { _, err := decodeClaim(b); return err }},
		{a.encode(), func(b []byte) error { _, err := decodeClaimAnswer(b); return err }},
		{
			encodeLeases(Incarnation{}, make([]LeaseID, 2)),
			func(b []byte) error { _, _, err := decodeLeases(b); return err },
		},
	} {
		for n := range len(m.body) {
			if err := m.decode(m.body[:n]); !errors.Is(err, errWire) {
				t.Fatalf("%d of %d bytes: %v", n, len(m.body), err)
			}
		}
		if err := m.decode(append(slices.Clone(m.body), 0)); !errors.Is(err, errWire) {
			t.Fatalf("left-over byte: %v", err)
		}
	}
}

// decodeAny returns nil when any decoder takes body.
func decodeAny(body []byte) error {
	_, e1 := decodeHello(body)
	_, e2 := decodeClaim(body)
	_, e3 := decodeClaimAnswer(body)
	_, _, e4 := decodeLeases(body)
	for _, err := range []error{e1, e2, e3, e4} {
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("all: %w", e1)
}

func FuzzHandoff(f *testing.F) {
	f.Add([]byte("null"))
	f.Add([]byte(`{"do_remote_decode":true}`))
	raw, _ := json.Marshal(sampleHandoff())
	f.Add(raw)
	for _, edit := range damaged() {
		m := object(f, sampleHandoff())
		edit(m)
		f.Add(text(f, m))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, err := ParseHandoff(raw)
		if err != nil {
			if _, ok := errors.AsType[*HandoffError](err); !ok || h != nil {
				t.Fatalf("%v with %v", err, h)
			}
			return
		}
		if h == nil {
			return
		}
		if len(h.Blocks) == 0 || len(h.Blocks) > MaxBlocks || h.Tokens > len(h.Blocks)*h.BlockTokens {
			t.Fatalf("out of bounds: %+v", h)
		}
		out, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseHandoff(out)
		if h.Port == 0 { // absent: written as 0, which no hand-off of ours has
			return
		}
		if err != nil || !cmp.Equal(h, again) {
			t.Fatalf("%v\n%s", err, cmp.Diff(h, again))
		}
	})
}

func FuzzMessages(f *testing.F) {
	c := claimOf(1)
	f.Add(encodeClaim(&c))
	f.Add((&claimAnswer{Sums: []uint64{1}}).encode())
	f.Add((&hello{Engine: "e", Ranks: [][]byte{{1}}}).encode())
	f.Add(encodeLeases(Incarnation{1}, []LeaseID{{2}}))
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = decodeAny(body)
		_, _ = decodeVerdicts(body, len(body))
	})
}
