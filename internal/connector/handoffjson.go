package connector

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"tandem/internal/kv"
)

// The wire names of kv_transfer_params: vLLM's, then ours.
const (
	FieldRemotePrefill = "do_remote_prefill"
	FieldRemoteDecode  = "do_remote_decode"
	FieldBlockIDs      = "remote_block_ids"
	FieldEngineID      = "remote_engine_id"
	FieldRequestID     = "remote_request_id"
	FieldHost          = "remote_host"
	FieldPort          = "remote_port"
	FieldTP            = "tp_size"
	FieldTokens        = "remote_num_tokens"
	FieldEpoch         = "remote_registration_epoch"
	FieldMode          = "transfer_mode"

	FieldIncarnation = "remote_incarnation"
	FieldLease       = "remote_lease"
	FieldBlockSize   = "remote_block_size"
	FieldDigest      = "remote_token_digest"
	FieldAddr        = "remote_addr"
	FieldVersion     = "remote_version"
	FieldMAC         = "remote_mac"
)

// Params is what kv_transfer_params of a request asks for.
type Params struct {
	// RemoteDecode asks this engine to keep the prompt's KV for another engine
	// and to answer with a hand-off.
	RemoteDecode bool

	// Handoff offers the prompt's KV, or is nil.
	Handoff *Handoff
}

// ParseParams reads kv_transfer_params. Null, nothing and an empty object ask
// for nothing; unknown keys are ignored; a null value is an absent key. Every
// field is checked for type and range; the error is a *HandoffError. The result
// is well formed, not yet vouched for: see Connector.Verify.
func ParseParams(raw []byte) (Params, error) {
	if len(raw) > MaxHandoffBytes {
		return Params{}, &HandoffError{
			Field:  "kv_transfer_params",
			Reason: fmt.Sprintf("%d bytes exceed the limit of %d", len(raw), MaxHandoffBytes),
		}
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || string(raw) == "null" {
		return Params{}, nil
	}
	if raw[0] != '{' {
		return Params{}, &HandoffError{Field: "kv_transfer_params", Reason: "not an object"}
	}
	f := fields{}
	if err := json.Unmarshal(raw, &f.raw); err != nil {
		return Params{}, &HandoffError{Field: "kv_transfer_params", Reason: "not valid JSON: " + err.Error()}
	}
	prefill, decode := f.boolean(FieldRemotePrefill), f.boolean(FieldRemoteDecode)
	if f.err == nil && prefill && decode {
		f.fail(FieldRemoteDecode, "set together with "+FieldRemotePrefill)
	}
	if f.err != nil {
		return Params{}, f.err
	}
	if !prefill {
		return Params{RemoteDecode: decode}, nil
	}
	h := f.handoff()
	if f.err != nil {
		return Params{}, f.err
	}
	return Params{Handoff: h}, nil
}

// ParseHandoff reads the hand-off out of kv_transfer_params, or returns nil when
// they offer none (null, or do_remote_prefill false). The error is a
// *HandoffError.
func ParseHandoff(raw []byte) (*Handoff, error) {
	p, err := ParseParams(raw)
	return p.Handoff, err
}

// fields reads typed values from a JSON object and keeps the first error.
type fields struct {
	raw map[string]json.RawMessage
	err error
}

func (f *fields) handoff() *Handoff {
	h := &Handoff{}
	h.Version = int(f.integer(FieldVersion, 0, 1<<16))
	if f.err == nil && h.Version != HandoffVersion {
		f.fail(FieldVersion, fmt.Sprintf("%d is not %d, the version of this engine", h.Version, HandoffVersion))
	}
	h.EngineID = kv.EngineID(f.text(FieldEngineID, maxEngineID, true))
	h.RequestID = f.text(FieldRequestID, maxRequestID, true)
	h.Host = f.text(FieldHost, maxHost, false)
	if f.has(FieldPort) {
		h.Port = int(f.integer(FieldPort, 1, 65535))
	}
	h.TP = 1 // vLLM's default
	if f.has(FieldTP) {
		h.TP = int(f.integer(FieldTP, 1, MaxTP))
	}
	h.Epoch = kv.Epoch(f.integer(FieldEpoch, 0, maxEpoch))
	f.bytes(FieldIncarnation, h.Incarnation[:])
	f.bytes(FieldLease, h.Lease[:])
	f.bytes(FieldDigest, h.Digest[:])
	f.bytes(FieldMAC, h.MAC[:])
	h.BlockTokens = int(f.integer(FieldBlockSize, 1, 1<<16))
	if f.err == nil && !slices.Contains([]int{16, 32, 64}, h.BlockTokens) {
		f.fail(FieldBlockSize, fmt.Sprintf("%d is not 16, 32 or 64", h.BlockTokens))
	}
	h.Blocks = f.blocks()
	h.Tokens = int(f.integer(FieldTokens, 0, MaxTokens))
	if f.err == nil && h.Tokens > len(h.Blocks)*h.BlockTokens {
		f.fail(FieldTokens, fmt.Sprintf("%d tokens do not fit in %d blocks of %d",
			h.Tokens, len(h.Blocks), h.BlockTokens))
	}
	h.Addr = f.text(FieldAddr, maxAddr, true)
	if f.err == nil {
		if err := checkAddr(h.Addr); err != nil {
			f.fail(FieldAddr, err.Error())
		}
	}
	return h
}

// checkAddr accepts host:port with a port that can be dialled.
func checkAddr(addr string) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is not host:port", addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || n == 0 {
		return fmt.Errorf("%q is not host:port", addr)
	}
	return nil
}

func (f *fields) fail(name, reason string) {
	if f.err == nil {
		f.err = &HandoffError{Field: name, Reason: reason}
	}
}

func (f *fields) has(name string) bool {
	v, ok := f.raw[name]
	return ok && string(v) != "null"
}

// boolean reads a flag; an absent one is false.
func (f *fields) boolean(name string) bool {
	if !f.has(name) {
		return false
	}
	switch string(f.raw[name]) {
	case "true":
		return true
	case "false":
		return false
	}
	f.fail(name, "not a boolean")
	return false
}

// integer reads a required whole number in [low, high].
func (f *fields) integer(name string, low, high int64) int64 {
	if !f.has(name) {
		f.fail(name, "missing")
		return 0
	}
	v := string(f.raw[name])
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		f.fail(name, fmt.Sprintf("not a whole number from %d to %d", low, high))
		return 0
	}
	if n < low || n > high {
		f.fail(name, fmt.Sprintf("%d is not from %d to %d", n, low, high))
		return 0
	}
	return n
}

// text reads a string of at most limit bytes without control characters.
func (f *fields) text(name string, limit int, required bool) string {
	if !f.has(name) {
		if required {
			f.fail(name, "missing")
		}
		return ""
	}
	v := f.raw[name]
	if len(v) > 6*limit+2 {
		f.fail(name, fmt.Sprintf("longer than %d bytes", limit))
		return ""
	}
	var s string
	if err := json.Unmarshal(v, &s); err != nil {
		f.fail(name, "not a string")
		return ""
	}
	switch {
	case len(s) > limit:
		f.fail(name, fmt.Sprintf("longer than %d bytes", limit))
	case required && s == "":
		f.fail(name, "empty")
	case !isPlain(s):
		f.fail(name, "contains control characters")
	}
	return s
}

// isPlain reports whether s is text without control characters.
func isPlain(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// bytes reads a required text of exactly 2*len(out) hexadecimal digits.
func (f *fields) bytes(name string, out []byte) {
	if !f.has(name) {
		f.fail(name, "missing")
		return
	}
	v := f.raw[name]
	if len(v) != 2*len(out)+2 || v[0] != '"' {
		f.fail(name, fmt.Sprintf("not a text of %d hexadecimal digits", 2*len(out)))
		return
	}
	if _, err := hex.Decode(out, v[1:len(v)-1]); err != nil {
		f.fail(name, fmt.Sprintf("not a text of %d hexadecimal digits", 2*len(out)))
	}
}

// blocks reads remote_block_ids: a list with one list of ids, or the flat list
// of older senders.
func (f *fields) blocks() []kv.BlockID {
	if f.err != nil {
		return nil
	}
	if !f.has(FieldBlockIDs) {
		f.fail(FieldBlockIDs, "missing")
		return nil
	}
	ids, reason := parseBlocks(f.raw[FieldBlockIDs])
	if reason != "" {
		f.fail(FieldBlockIDs, reason)
		return nil
	}
	return ids
}

// parseBlocks reads valid JSON text without building anything but the result.
func parseBlocks(v []byte) (ids []kv.BlockID, reason string) {
	n := bytes.Count(v, []byte{','}) + 1
	if n > MaxBlocks {
		return nil, fmt.Sprintf("more than %d block ids", MaxBlocks)
	}
	ids = make([]kv.BlockID, 0, n)
	groups, depth := 0, 0
	nested, flat := false, false
	for i := 0; i < len(v); {
		switch c := v[i]; {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == ',':
			i++
		case c == '[':
			depth++
			if depth == 2 {
				groups, nested = groups+1, true
			}
			if depth > 2 || groups > 1 || nested && flat {
				return nil, "not a list with one list of block ids"
			}
			i++
		case c == ']':
			depth--
			i++
		case c >= '0' && c <= '9' && depth > 0:
			flat = flat || depth == 1
			end := i
			for end < len(v) && v[end] >= '0' && v[end] <= '9' {
				end++
			}
			n, err := strconv.ParseInt(string(v[i:end]), 10, 32)
			if err != nil {
				return nil, "a block id is out of range"
			}
			if end < len(v) && (v[end] == '.' || v[end] == 'e' || v[end] == 'E') {
				return nil, "a block id is not a whole number"
			}
			if nested && flat {
				return nil, "not a list with one list of block ids"
			}
			ids = append(ids, kv.BlockID(n))
			i = end
		case c == '-':
			return nil, "a block id is out of range"
		default:
			return nil, "not a list with one list of block ids"
		}
	}
	if len(ids) == 0 {
		return nil, "no block ids"
	}
	return ids, ""
}

// MarshalJSON writes h as the kv_transfer_params that P answers with.
func (h *Handoff) MarshalJSON() ([]byte, error) {
	w := struct {
		Prefill     bool           `json:"do_remote_prefill"`
		Decode      bool           `json:"do_remote_decode"`
		Blocks      [][]kv.BlockID `json:"remote_block_ids"`
		EngineID    kv.EngineID    `json:"remote_engine_id"`
		RequestID   string         `json:"remote_request_id"`
		Host        string         `json:"remote_host"`
		Port        int            `json:"remote_port"`
		TP          int            `json:"tp_size"`
		Tokens      int            `json:"remote_num_tokens"`
		Mode        string         `json:"transfer_mode"`
		Epoch       kv.Epoch       `json:"remote_registration_epoch"`
		Incarnation string         `json:"remote_incarnation"`
		Lease       string         `json:"remote_lease"`
		BlockTokens int            `json:"remote_block_size"`
		Digest      string         `json:"remote_token_digest"`
		Addr        string         `json:"remote_addr"`
		Version     int            `json:"remote_version"`
		MAC         string         `json:"remote_mac"`
	}{
		true, false, [][]kv.BlockID{h.Blocks}, h.EngineID, h.RequestID, h.Host, h.Port, h.TP, h.Tokens, "pull",
		h.Epoch, h.Incarnation.String(), h.Lease.String(), h.BlockTokens, hex.EncodeToString(h.Digest[:]),
		h.Addr, h.Version, hex.EncodeToString(h.MAC[:]),
	}
	return json.Marshal(w)
}
