package fault

import (
	"log/slog"
	"maps"
	"slices"
	"sync"
)

// An Injector decides which calls are hit. It is safe for concurrent use: a
// decision is the plan's, and the mutex only orders the calls that it numbers.
type Injector struct {
	cfg Config

	mu       sync.Mutex
	mode     Mode
	schedule *schedule
	replay   map[call]Event
	calls    map[Point]uint64
	counts   map[Cell]uint64
	events   []Event
	lost     uint64        // events that did not fit
	changed  chan struct{} // closed when the plan changes
}

// A Mode says what an Injector decides by.
type Mode string

// The modes.
const (
	ModeOff    Mode = "off"
	ModePlan   Mode = "plan"
	ModeReplay Mode = "replay"
)

// A call is the n-th call at a point since the plan was set.
type call struct {
	point Point
	n     uint64
}

// A Config says what an Injector has beside its plan.
type Config struct {
	Log  *slog.Logger // a line for each fault; nil: none
	Kill func()       // action kill; nil: the process only falls silent
}

// New returns an Injector that is off.
func New(cfg Config) *Injector {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	i := &Injector{cfg: cfg, mode: ModeOff}
	i.clear()
	return i
}

// clear starts counts and the record anew, and tells those who wait.
func (i *Injector) clear() {
	i.calls, i.counts, i.events, i.lost = map[Point]uint64{}, map[Cell]uint64{}, nil, 0
	i.notify()
}

func (i *Injector) notify() {
	if i.changed != nil {
		close(i.changed)
	}
	i.changed = make(chan struct{})
}

// Set replaces the plan. Calls, counts and the record start anew; what an
// earlier plan holds is let go. The error is a *PlanError, and then nothing
// changed.
func (i *Injector) Set(p Plan) error {
	if err := p.Check(); err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mode, i.schedule, i.replay = ModePlan, newSchedule(p), nil
	i.clear()
	return nil
}

// Replay makes the calls that the events name get their faults again: the n-th
// call at a point the fault that the n-th call at this point had. Calls, counts
// and the record start anew. The error is a *PlanError, and then nothing changed.
func (i *Injector) Replay(events []Event) error {
	replay, err := index(events)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mode, i.schedule, i.replay = ModeReplay, nil, replay
	i.clear()
	return nil
}

// Off ends all faults and lets go what they hold. Counts and the record stay.
func (i *Injector) Off() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.mode, i.schedule, i.replay = ModeOff, nil, nil
	i.notify()
}

// Decide numbers a call at p and says whether it is hit, and by what. Who asks
// carries the fault out: it counts as done.
func (i *Injector) Decide(p Point, sub Subject) (Fault, bool) {
	f, _, ok := i.decide(p, sub)
	return f, ok
}

// decide is Decide; changed is closed when the plan that hit the call no longer
// holds.
func (i *Injector) decide(p Point, sub Subject) (f Fault, changed <-chan struct{}, ok bool) {
	i.mu.Lock()
	if i.mode == ModeOff {
		i.mu.Unlock()
		return f, nil, false
	}
	i.calls[p]++
	at := call{p, i.calls[p]}
	if i.mode == ModeReplay {
		var e Event
		e, ok = i.replay[at]
		f = e.fault()
	} else {
		f, ok = i.schedule.decide(p, sub)
	}
	if ok {
		i.counts[f.Cell()]++
		if len(i.events) < MaxEvents {
			i.events = append(i.events, newEvent(at.n, sub, f))
		} else {
			i.lost++
		}
	}
	changed = i.changed
	i.mu.Unlock()
	if ok {
		attrs := []any{"point", string(p), "action", string(f.Action), "call", at.n}
		for _, a := range [][2]string{{"class", string(f.Class)}, {"request_id", sub.Request}, {"peer", sub.Peer}} {
			if a[1] != "" {
				attrs = append(attrs, a[0], a[1])
			}
		}
		i.cfg.Log.Warn("fault injected", attrs...)
	}
	return f, changed, ok
}

// A Count is how often a cell's fault was injected.
type Count struct {
	Point  Point  `json:"point"`
	Action Action `json:"action"`
	Fired  uint64 `json:"fired"`
}

// Counts returns what was injected since the plan was set, in the order of
// Cells, without those that were not.
func (i *Injector) Counts() []Count {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.countsLocked()
}

func (i *Injector) countsLocked() []Count {
	out := []Count{}
	for _, c := range Cells() {
		if n := i.counts[c]; n > 0 {
			out = append(out, Count{c.Point, c.Action, n})
		}
	}
	return out
}

// A Status is what an operator sees of an Injector.
type Status struct {
	Mode       Mode             `json:"mode"`
	Plan       *Plan            `json:"plan,omitempty"`       // in mode plan
	Replaying  int              `json:"replaying,omitempty"`  // events, in mode replay
	Calls      map[Point]uint64 `json:"calls"`                // since the plan was set
	Counts     []Count          `json:"counts"`               // as Injector.Counts
	Fired      uint64           `json:"fired"`                // their sum
	Recorded   int              `json:"recorded"`             // events
	Unrecorded uint64           `json:"unrecorded,omitempty"` // events that did not fit
}

// Status returns a snapshot.
func (i *Injector) Status() Status {
	i.mu.Lock()
	defer i.mu.Unlock()
	s := Status{
		Mode: i.mode, Replaying: len(i.replay), Calls: maps.Clone(i.calls), Counts: i.countsLocked(),
		Recorded: len(i.events), Unrecorded: i.lost,
	}
	if i.schedule != nil {
		p := i.schedule.plan
		p.Faults = append([]Fault{}, p.Faults...)
		s.Plan = &p
	}
	for _, c := range s.Counts {
		s.Fired += c.Fired
	}
	return s
}

// Events returns the record: what was injected since the plan was set, in order,
// at most MaxEvents.
func (i *Injector) Events() []Event {
	i.mu.Lock()
	defer i.mu.Unlock()
	return slices.Clone(i.events)
}
