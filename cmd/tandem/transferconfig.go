package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/transfer"
)

// A transferConfig is --kv-transfer-config, with vLLM's names. The help of each
// field is what docs/config.md says of it.
type transferConfig struct {
	Connector string            `json:"kv_connector" help:"TandemConnector; vLLM's NixlConnector and NixlPullConnector mean the same here"`
	Role      connector.Role    `json:"kv_role" help:"kv_producer grants hand-offs (P), kv_consumer loads them (D), kv_both does both"`
	EngineID  string            `json:"engine_id" help:"name of the engine for peers, logs and metrics, up to 128 bytes; empty: a random one at each start"`
	Policy    engine.FailPolicy `json:"kv_load_failure_policy" help:"what happens to a request whose KV load fails: fail ends it with a 500, recompute computes what is missing here; tandem up sets recompute"`
	Extra     transferExtra     `json:"kv_connector_extra_config" help:"the keys of the next table"`

	BufferDevice string `json:"kv_buffer_device" help:"vLLM's; read and without effect, since KV is always in host memory"`
	Permute      bool   `json:"enable_permute_local_kv" help:"vLLM's; read and without effect, as above"`
}

// transferExtra is kv_connector_extra_config. Durations are seconds, as in
// vLLM.
type transferExtra struct {
	LeaseSeconds     float64 `json:"kv_lease_duration" help:"P: how long it keeps the blocks of a hand-off that nobody has claimed; D renews it while its request waits, up to ten times this"`
	Threads          int     `json:"num_threads" help:"D: threads of each rank that copy from the memory of peers on this host; 0 or less is 2"`
	EngineTTLSeconds float64 `json:"engine_ttl" help:"D: an unused peer is forgotten after so long; the next request to it begins with a handshake"`
	HandshakeSeconds float64 `json:"handshake_timeout" help:"D: longest time to connect to a peer and compare models; then class handshake"`
	LoadSeconds      float64 `json:"load_timeout" help:"D: longest time of handshake, claim and read of one prompt; then class timeout"`
	StallSeconds     float64 `json:"no_progress_timeout" help:"D: longest time without an answer to a claim, or without a new tile; then class timeout"`

	// Paths are the transfer paths that may be chosen between hosts and processes.
	Paths []string `json:"transfer_paths" help:"D: paths that may be chosen, of memfd (shared memory on one host) and tcp; none: both, and a measurement decides"`

	EnforceCompat *bool    `json:"enforce_handshake_compat" help:"vLLM's; only true is taken: engines that differ would make wrong tokens"`
	Backends      []string `json:"backends" help:"vLLM's; read and without effect, since they choose among what this connector does not have"`
}

// connectorNames are the names under which our connector is asked for. vLLM's
// own is one of them, so that its configurations work as they are.
var connectorNames = []string{"TandemConnector", "NixlConnector", "NixlPullConnector"}

// errNoTransfer says that no connector is wanted.
var errNoTransfer = errors.New("no --kv-transfer-config")

// parseTransfer reads the JSON of --kv-transfer-config (@FILE reads a file) and
// the dotted flags, name=value, that set single keys of it.
func parseTransfer(text string, dotted map[string]string) (transferConfig, error) {
	var c transferConfig
	if text == "" && len(dotted) == 0 {
		return c, errNoTransfer
	}
	tree := map[string]any{}
	if path, ok := strings.CutPrefix(text, "@"); ok {
		data, err := os.ReadFile(path)
		if err != nil {
			return c, fmt.Errorf("--kv-transfer-config: %w", err)
		}
		text = string(data)
	}
	if text != "" {
		dec := json.NewDecoder(strings.NewReader(text))
		dec.UseNumber()
		err := dec.Decode(&tree)
		if err == nil && (tree == nil || !atEnd(dec)) {
			err = errors.New("null, or more than one value")
		}
		if err != nil {
			return c, fmt.Errorf("--kv-transfer-config: %w: want a JSON object such as {\"kv_connector\":\"TandemConnector\",\"kv_role\":\"kv_producer\"}, or @FILE with one", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(dotted)) { // the same flags give the same result
		if err := setDotted(tree, strings.Split(name, "."), dotted[name]); err != nil {
			return c, fmt.Errorf("--kv-transfer-config.%s: %w", name, err)
		}
	}
	data, err := json.Marshal(tree)
	if err != nil {
		return c, err
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return c, fmt.Errorf("--kv-transfer-config: %s: want %s, got a JSON %s", te.Field, wanted(te.Type), te.Value)
		}
		if strings.HasPrefix(err.Error(), "json: unknown field") { // has no type
			err = fmt.Errorf("%w; there are %s; and in kv_connector_extra_config %s", err, fieldsOf[transferConfig](), fieldsOf[transferExtra]())
		}
		return c, fmt.Errorf("--kv-transfer-config: %w", err)
	}
	return c, c.check()
}

// wanted says in words what a key of that type takes.
func wanted(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Float64:
		return "a number of seconds"
	case reflect.Int:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list of texts"
	case reflect.Struct:
		return "an object"
	default:
		return "a text"
	}
}

// fieldsOf lists the JSON names of a struct.
func fieldsOf[T any]() string {
	var out []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		out = append(out, f.Tag.Get("json"))
	}
	return strings.Join(out, ", ")
}

// setDotted sets one key of a tree; a value that is JSON is taken as JSON.
func setDotted(tree map[string]any, path []string, value string) error {
	for _, k := range path[:len(path)-1] {
		next, ok := tree[k].(map[string]any)
		if !ok {
			if tree[k] != nil {
				return fmt.Errorf("%q is not an object", k)
			}
			next = map[string]any{}
			tree[k] = next
		}
		tree = next
	}
	var v any
	dec := json.NewDecoder(strings.NewReader(value))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil || dec.More() || !atEnd(dec) {
		v = value
	}
	tree[path[len(path)-1]] = v
	return nil
}

func atEnd(dec *json.Decoder) bool {
	_, err := dec.Token()
	return errors.Is(err, io.EOF)
}

func (c *transferConfig) check() error {
	switch {
	case !slices.Contains(connectorNames, c.Connector):
		return fmt.Errorf("--kv-transfer-config: kv_connector %q: want one of %s", c.Connector, strings.Join(connectorNames, ", "))
	case !c.Role.Produces() && !c.Role.Consumes():
		return fmt.Errorf("--kv-transfer-config: kv_role %q: want kv_producer, kv_consumer or kv_both", c.Role)
	case c.Policy != "" && c.Policy != engine.PolicyFail && c.Policy != engine.PolicyRecompute:
		return fmt.Errorf("--kv-transfer-config: kv_load_failure_policy %q: want fail or recompute", c.Policy)
	case c.Extra.EnforceCompat != nil && !*c.Extra.EnforceCompat:
		return errors.New("--kv-transfer-config: enforce_handshake_compat cannot be switched off: engines that differ would make wrong tokens")
	}
	if len(c.Extra.Paths) == 0 {
		c.Extra.Paths = nil
	}
	for _, p := range c.Extra.Paths {
		if p != transfer.PathMemfd && p != transfer.PathTCP {
			return fmt.Errorf("--kv-transfer-config: transfer_paths %q: want %s or %s", p, transfer.PathMemfd, transfer.PathTCP)
		}
	}
	for name, v := range map[string]float64{
		"kv_lease_duration": c.Extra.LeaseSeconds, "engine_ttl": c.Extra.EngineTTLSeconds, "handshake_timeout": c.Extra.HandshakeSeconds,
		"load_timeout": c.Extra.LoadSeconds, "no_progress_timeout": c.Extra.StallSeconds,
	} {
		if v != 0 && (v < shortest.Seconds() || v > 86400) {
			return fmt.Errorf("--kv-transfer-config: %s %v: want seconds from %v to 86400, or 0 for the default", name, v, shortest.Seconds())
		}
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// dottedArgs takes the arguments `--kv-transfer-config.KEY=VALUE` and
// `--kv-transfer-config.KEY VALUE` out of args. pflag cannot define flags whose
// names are open.
func dottedArgs(args []string) (rest []string, dotted map[string]string, err error) {
	const prefix = "--kv-transfer-config."
	for i := 0; i < len(args); i++ {
		name, ok := strings.CutPrefix(args[i], prefix)
		if !ok {
			rest = append(rest, args[i])
			continue
		}
		name, value, given := strings.Cut(name, "=")
		if !given {
			if i++; i == len(args) {
				return nil, nil, fmt.Errorf("%s%s: wants a value", prefix, name)
			}
			value = args[i]
		}
		if name == "" || strings.Contains(name, "..") || strings.HasSuffix(name, ".") {
			return nil, nil, fmt.Errorf("%s%s: wants a key", prefix, name)
		}
		if dotted == nil {
			dotted = map[string]string{}
		}
		dotted[name] = value
	}
	return rest, dotted, nil
}
