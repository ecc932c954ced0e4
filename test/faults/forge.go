package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tandem/internal/connector"
	"tandem/internal/kv"
)

// A damage makes a bad hand-off out of a good one.
type damage struct {
	name string
	// want lists the classes with one of which the load must fail; "": refused
	// with a 400.
	want string
	// lost is how many tokens of the prompt must be computed again; -1: all.
	lost func(h *connector.Handoff, prompt int) int
	// signed changes typed fields; the cluster token vouches for the result.
	// Other is a hand-off of another prompt with as many tokens, that lives.
	signed func(h, other *connector.Handoff, w *world)
	// raw changes the text, without a new MAC.
	raw func(m map[string]json.RawMessage)
	// few says that this one costs D a whole deadline.
	few bool
}

// A world is what a forger knows beside the hand-offs.
type world struct {
	closed string // an address where nobody listens
	silent string // one that accepts and says nothing
	other  string // of another engine
	blocks int    // of P
}

// all loses the whole load.
func all(*connector.Handoff, int) int { return -1 }

// first loses the tile that the first block holds.
func first(h *connector.Handoff, prompt int) int { return min(kv.TileTokens, prompt-1) }

// damages are every field of a hand-off in turn: as a client could damage it, and
// as one could who holds the cluster token.
func damages() []damage {
	out := []damage{
		{name: "incarnation", want: "handshake", signed: func(h, _ *connector.Handoff, _ *world) { h.Incarnation[3] ^= 1 }},
		{name: "epoch above", want: "refused", signed: func(h, _ *connector.Handoff, _ *world) { h.Epoch++ }},
		{name: "epoch below", want: "refused", signed: func(h, _ *connector.Handoff, _ *world) { h.Epoch-- }},
		{name: "lease of nobody", want: "gone", signed: func(h, _ *connector.Handoff, _ *world) { h.Lease[7] ^= 1 }},
		{name: "lease of another", want: "refused", signed: func(h, o *connector.Handoff, _ *world) { h.Lease = o.Lease }},
		{name: "digest", want: "refused", signed: func(h, _ *connector.Handoff, _ *world) { h.Digest[0] ^= 1 }},
		{name: "digest of another", want: "refused", signed: func(h, o *connector.Handoff, _ *world) { h.Digest = o.Digest }},
		{name: "fewer tokens", want: "refused", signed: func(h, _ *connector.Handoff, _ *world) { h.Tokens-- }},
		{name: "more tokens", signed: func(h, _ *connector.Handoff, _ *world) { h.Tokens = len(h.Blocks)*h.BlockTokens + 1 }},
		{name: "blocks turned", want: "sum,gone", signed: func(h, _ *connector.Handoff, _ *world) {
			h.Blocks = append(slices.Clone(h.Blocks[1:]), h.Blocks[0])
		}},
		{name: "blocks of another", want: "sum,gone", signed: func(h, o *connector.Handoff, _ *world) { h.Blocks = o.Blocks }},
		{name: "one block of another", want: "sum,gone", lost: first, signed: func(h, o *connector.Handoff, _ *world) {
			h.Blocks = slices.Clone(h.Blocks)
			h.Blocks[0] = o.Blocks[0]
		}},
		{name: "a block twice", want: "sum,gone", lost: first, signed: func(h, _ *connector.Handoff, _ *world) {
			h.Blocks = slices.Clone(h.Blocks)
			h.Blocks[0] = h.Blocks[1]
		}},
		{name: "a block behind the pool", want: "read,gone", signed: func(h, _ *connector.Handoff, w *world) {
			h.Blocks = slices.Clone(h.Blocks)
			h.Blocks[0] = kv.BlockID(w.blocks)
		}},
		{name: "a block missing", signed: func(h, _ *connector.Handoff, _ *world) { h.Blocks = h.Blocks[:len(h.Blocks)-1] }},
		{name: "block size", want: "setup", signed: func(h, _ *connector.Handoff, _ *world) { h.BlockTokens = 32 }},
		{name: "ranks", want: "setup", signed: func(h, _ *connector.Handoff, _ *world) { h.TP = 2 }},
		{name: "address of nobody", want: "handshake", signed: func(h, _ *connector.Handoff, w *world) { h.Addr = w.closed }},
		{name: "address of another engine", want: "handshake", signed: func(h, _ *connector.Handoff, w *world) { h.Addr = w.other }},
		{name: "address that is silent", want: "handshake", few: true, signed: func(h, _ *connector.Handoff, w *world) { h.Addr = w.silent }},
		{name: "version", signed: func(h, _ *connector.Handoff, _ *world) { h.Version++ }},
	}
	for i := range out {
		if out[i].lost == nil {
			out[i].lost = all
		}
		out[i].name = "signed: " + out[i].name
	}
	for field, v := range map[string]string{
		connector.FieldEngineID: `"Q"`, connector.FieldRequestID: `"cmpl-1"`, connector.FieldTP: "2", connector.FieldTokens: "17",
		connector.FieldEpoch: "2", connector.FieldBlockSize: "32", connector.FieldBlockIDs: "[[1,2,3,4,5,6,7,8,9,10,11,12]]",
		connector.FieldIncarnation: hexes(32), connector.FieldLease: hexes(32), connector.FieldDigest: hexes(64), connector.FieldMAC: hexes(64),
		connector.FieldAddr: `"127.0.0.1:9"`, connector.FieldVersion: "2", connector.FieldRemoteDecode: "true",
	} {
		out = append(out,
			damage{name: "unsigned: " + field, raw: func(m map[string]json.RawMessage) { m[field] = json.RawMessage(v) }},
			damage{name: "ill formed: " + field, raw: func(m map[string]json.RawMessage) { m[field] = json.RawMessage(`{"a":[-1]}`) }})
		if field != connector.FieldRemoteDecode && field != connector.FieldTP { // these have defaults
			out = append(out, damage{name: "missing: " + field, raw: func(m map[string]json.RawMessage) { delete(m, field) }})
		}
	}
	slices.SortFunc(out, func(a, b damage) int { return strings.Compare(a.name, b.name) })
	return out
}

func hexes(n int) string { return `"` + strings.Repeat("5", n) + `"` }

// apply returns params damaged.
func (d *damage) apply(params, other json.RawMessage, secret []byte, w *world) (json.RawMessage, error) {
	if d.raw != nil {
		var m map[string]json.RawMessage
		if err := json.Unmarshal(params, &m); err != nil {
			return nil, err
		}
		m = maps.Clone(m)
		d.raw(m)
		return json.Marshal(m)
	}
	h, err := connector.ParseHandoff(params)
	if err != nil {
		return nil, err
	}
	o, err := connector.ParseHandoff(other)
	if err != nil {
		return nil, err
	}
	if h == nil || o == nil || !h.Vouched(secret) {
		return nil, fmt.Errorf("no hand-off that the token vouches for: %.200s", params)
	}
	bad := *h
	d.signed(&bad, o, w)
	bad.Sign(secret)
	return json.Marshal(&bad)
}
