package fault

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"tandem/internal/connector"
)

// Bounds of a plan.
const (
	MaxPlan    = 64 << 10         // bytes of its JSON
	maxFaults  = 64               // of one plan
	maxPattern = 1024             // characters
	maxNth     = 1024             // numbers
	maxGlob    = 256              // bytes
	maxEvery   = 1 << 20          // tiles
	maxBytes   = 1 << 40          // of Fault.Bytes
	maxDelay   = 10 * time.Minute // of Fault.Delay
)

// A Plan says what goes wrong and when. Where several faults would hit the same
// call, the first of the list does.
type Plan struct {
	Seed   uint64  `json:"seed"`
	Faults []Fault `json:"faults"`
}

// A Fault is one thing that goes wrong, as often as its schedule says.
type Fault struct {
	Point  Point  `json:"point"`
	Action Action `json:"action"`

	// Class is what an error is taken for: one of Classes; empty: the first.
	Class connector.LoadClass `json:"class,omitempty"`

	// Status is the HTTP status of an error at point http, from 400 to 599; 0: 500.
	Status int `json:"status,omitempty"`

	// Bytes is how many bytes arrive before a stall, a cut or a failing read. It
	// is cut down so that something is missing.
	Bytes int64 `json:"bytes,omitempty"`

	// Delay is how long action delay takes.
	Delay Duration `json:"delay,omitempty"`

	// Every hits each Every-th tile of a read or an answer: 1 all, 2 the second,
	// the fourth, and so on; 0: one tile that the seed draws.
	Every int `json:"every,omitempty"`

	When When `json:"when,omitzero"`

	// Draw is a random number that belongs to this call; it chooses the tile and
	// the bit. Decide sets it.
	Draw uint64 `json:"-"`
}

// Cell returns the fault's point and action.
func (f *Fault) Cell() Cell { return Cell{f.Point, f.Action} }

// When is a schedule. All that is set must hold; an empty one always does.
// RequestID and Peer say which calls are meant, and only those are numbered, from
// 1, for each fault of its own.
type When struct {
	// Probability is the part of the calls that are hit, drawn with the plan's
	// seed; from 0 (not set) to 1.
	Probability float64 `json:"probability,omitempty"`

	// Pattern has a letter for each call: O lets it pass, X hits it. It starts
	// again at its end, or, with Once, lets everything pass from there on.
	Pattern string `json:"pattern,omitempty"`
	Once    bool   `json:"once,omitempty"`

	// Nth lists numbers of calls.
	Nth []uint64 `json:"nth,omitempty"`

	// RequestID and Peer are globs with * and ?. A request has the name that its
	// client gave it with X-Request-Id, at every point. A peer is host:port.
	RequestID string `json:"request_id,omitempty"`
	Peer      string `json:"peer,omitempty"`
}

// A Duration is written like 200ms or 1.5s.
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}

// A PlanError says which field of a plan is wrong, and what it should be.
type PlanError struct {
	Field string // such as faults[2].when.nth
	Want  string
}

// Error names the field and the remedy.
func (e *PlanError) Error() string { return fmt.Sprintf("fault: reading %s: %s", e.Field, e.Want) }

// ParsePlan reads a plan from JSON, at most MaxPlan bytes. Unknown fields and
// everything that would have no effect are errors, all of them *PlanError.
func ParsePlan(raw []byte) (Plan, error) {
	var p Plan
	if len(raw) > MaxPlan {
		return p, &PlanError{"the plan", fmt.Sprintf("it has %d bytes, at most %d are allowed", len(raw), MaxPlan)}
	}
	var faults []json.RawMessage
	if err := object("", raw, map[string]any{"seed": &p.Seed, "faults": &faults}); err != nil {
		return Plan{}, err
	}
	if len(faults) == 0 {
		return Plan{}, &PlanError{"faults", "a plan without any does nothing; `tandem chaos off` ends faults"}
	}
	if len(faults) > maxFaults {
		return Plan{}, &PlanError{"faults", fmt.Sprintf("there are %d, at most %d are allowed", len(faults), maxFaults)}
	}
	for i, f := range faults {
		v, err := parseFault(fmt.Sprintf("faults[%d]", i), f)
		if err != nil {
			return Plan{}, err
		}
		p.Faults = append(p.Faults, v)
	}
	return p, p.Check()
}

// parseFault reads a fault with its schedule.
func parseFault(path string, raw []byte) (Fault, error) {
	var f Fault
	var when json.RawMessage
	into := f.fields()
	into["when"] = &when
	if err := object(path, raw, into); err != nil || when == nil {
		return f, err
	}
	w, path := &f.When, path+".when"
	var probability *float64
	err := object(path, when, map[string]any{
		"probability": &probability, "pattern": &w.Pattern, "once": &w.Once, "nth": &w.Nth, "request_id": &w.RequestID, "peer": &w.Peer,
	})
	switch {
	case err != nil:
		return f, err
	case w.Nth != nil && len(w.Nth) == 0:
		return f, &PlanError{path + ".nth", "an empty list hits nothing; leave the fault out"}
	case probability != nil && *probability == 0:
		return f, &PlanError{path + ".probability", "0 hits nothing; leave the fault out, or end all with `tandem chaos off`"}
	case probability != nil:
		w.Probability = *probability
	}
	return f, nil
}

// fields are the fields of a fault that a record has, too.
func (f *Fault) fields() map[string]any {
	return map[string]any{
		"point": &f.Point, "action": &f.Action, "class": &f.Class, "status": &f.Status, "bytes": &f.Bytes,
		"delay": &f.Delay, "every": &f.Every,
	}
}

// object reads the fields of a JSON object into the values of into, which are
// pointers, and refuses all others.
func object(path string, raw []byte, into map[string]any) error {
	name := path
	if name == "" {
		name = "the plan"
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil || fields == nil {
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			return &PlanError{name, fmt.Sprintf("it is no JSON: %v at byte %d", syntax, syntax.Offset)}
		}
		return &PlanError{name, "want a JSON object"}
	}
	for _, k := range keys(fields) {
		at := strings.TrimPrefix(path+"."+k, ".")
		v, ok := into[k]
		if !ok {
			return &PlanError{fmt.Sprintf("%.80s", at), "there is no such field; want one of " + strings.Join(keys(into), ", ")}
		}
		if err := json.Unmarshal(fields[k], v); err != nil {
			return &PlanError{at, wanted(v)}
		}
	}
	return nil
}

func keys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// wanted says in words what fits into v.
func wanted(v any) string {
	switch v.(type) {
	case *string, *Point, *Action, *connector.LoadClass:
		return "want a string"
	case *uint64:
		return "want a whole number that is not negative"
	case *int, *int64:
		return "want a whole number"
	case **float64:
		return "want a number from 0 to 1"
	case *bool:
		return "want true or false"
	case *Duration:
		return `want a duration in quotes, such as "200ms"`
	case *[]uint64:
		return "want a list of call numbers, such as [1, 3]"
	default:
		return "want a list of objects"
	}
}

// what names the faults of a plan, for people.
func (p *Plan) what() string {
	out := make([]string, len(p.Faults))
	for i, f := range p.Faults {
		out[i] = string(f.Point) + " " + string(f.Action)
	}
	return join(out)
}

// Check reports what is wrong with a plan as a *PlanError.
func (p *Plan) Check() error {
	if len(p.Faults) > maxFaults {
		return &PlanError{"faults", fmt.Sprintf("there are %d, at most %d are allowed", len(p.Faults), maxFaults)}
	}
	for i := range p.Faults {
		if err := p.Faults[i].check(fmt.Sprintf("faults[%d]", i)); err != nil {
			return err
		}
	}
	return nil
}

func (f *Fault) check(path string) error {
	bad := func(field, format string, args ...any) error {
		return &PlanError{path + "." + field, fmt.Sprintf(format, args...)}
	}
	actions := Actions(f.Point)
	classes := Classes(f.Point)
	c := f.Cell()
	switch {
	case actions == nil:
		return bad("point", "%.40q is none; want one of %s", f.Point, join(Points()))
	case !slices.Contains(actions, f.Action):
		return bad("action", "%.40q makes no sense at %s; want one of %s", f.Action, f.Point, join(actions))
	case f.Class != "" && (f.Action != Error || classes == nil):
		return bad("class", "%s at %s has no class; leave it out", f.Action, f.Point)
	case f.Class != "" && !slices.Contains(classes, f.Class):
		return bad("class", "%.40q does not happen at %s; want one of %s", f.Class, f.Point, join(classes))
	case f.Status != 0 && c != Cell{HTTP, Error}:
		return bad("status", "only action error at point http has one; leave it out")
	case f.Status != 0 && (f.Status < http.StatusBadRequest || f.Status > 599):
		return bad("status", "%d is not from 400 to 599", f.Status)
	case f.Bytes != 0 && !sized(c):
		return bad("bytes", "%s at %s does not count bytes; leave it out", f.Action, f.Point)
	case f.Bytes < 0 || f.Bytes > maxBytes:
		return bad("bytes", "%d is not from 0 to %d", f.Bytes, int64(maxBytes))
	case f.Action == Delay && f.Delay == 0:
		return bad("delay", `action delay needs how long, such as "200ms"`)
	case f.Action != Delay && f.Delay != 0:
		return bad("delay", "only action delay takes time; leave it out")
	case f.Delay < 0 || time.Duration(f.Delay) > maxDelay:
		return bad("delay", "%v is not from 0 to %v", time.Duration(f.Delay), maxDelay)
	case f.Every != 0 && !spread(c):
		return bad("every", "%s at %s does not choose tiles; leave it out", f.Action, f.Point)
	case f.Every < 0 || f.Every > maxEvery:
		return bad("every", "%d is not from 0 to %d", f.Every, maxEvery)
	}
	return f.When.check(f.Point, path+".when")
}

func (w *When) check(p Point, path string) error {
	bad := func(field, format string, args ...any) error {
		return &PlanError{path + "." + field, fmt.Sprintf(format, args...)}
	}
	switch {
	case !(w.Probability >= 0 && w.Probability <= 1):
		return bad("probability", "%v is not from 0 to 1", w.Probability)
	case len(w.Pattern) > maxPattern:
		return bad("pattern", "it has %d letters, at most %d are allowed", len(w.Pattern), maxPattern)
	case strings.Trim(w.Pattern, "OX") != "":
		return bad("pattern", "%.40q has other letters than O (passes) and X (is hit)", w.Pattern)
	case w.Pattern != "" && !strings.Contains(w.Pattern, "X"):
		return bad("pattern", "%.40q hits nothing; put an X where the fault shall be", w.Pattern)
	case w.Once && w.Pattern == "":
		return bad("once", "it is for a pattern; give one, or use nth")
	case len(w.Nth) > maxNth:
		return bad("nth", "there are %d numbers, at most %d are allowed", len(w.Nth), maxNth)
	case slices.Contains(w.Nth, 0):
		return bad("nth", "calls are numbered from 1")
	case len(w.RequestID) > maxGlob:
		return bad("request_id", "it has %d bytes, at most %d are allowed", len(w.RequestID), maxGlob)
	case w.RequestID != "" && !named(p):
		return bad("request_id", "calls at %s do not know their request; use nth or pattern", p)
	case len(w.Peer) > maxGlob:
		return bad("peer", "it has %d bytes, at most %d are allowed", len(w.Peer), maxGlob)
	case w.Peer != "" && !addressed(p):
		return bad("peer", "calls at %s do not know the address of the other side; set the plan on the other engine", p)
	case w.Peer != "" && !strings.ContainsAny(w.Peer, ":*?"):
		return bad("peer", "%.40q is no host:port and hits nothing; give both, or *", w.Peer)
	}
	return nil
}

func join[S ~string](list []S) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = string(s)
	}
	return strings.Join(out, ", ")
}
