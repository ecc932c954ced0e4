package fault

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"tandem/internal/connector"
)

// MaxEvents bounds a record: later faults happen and are only counted.
const MaxEvents = 10_000

// MaxRecord bounds the bytes of a record that ReadEvents takes.
const MaxRecord = 4 << 20

// An Event is one injected fault: which call was hit, and how.
type Event struct {
	Point   Point  `json:"point"`
	Call    uint64 `json:"call"` // at this point, from 1
	Request string `json:"request_id,omitempty"`
	Peer    string `json:"peer,omitempty"`

	Action Action              `json:"action"`
	Class  connector.LoadClass `json:"class,omitempty"`
	Status int                 `json:"status,omitempty"`
	Bytes  int64               `json:"bytes,omitempty"`
	Delay  Duration            `json:"delay,omitempty"`
	Every  int                 `json:"every,omitempty"`
	Draw   uint64              `json:"draw"`
}

func newEvent(n uint64, sub Subject, f Fault) Event {
	return Event{
		Point: f.Point, Call: n, Request: sub.Request, Peer: sub.Peer,
		Action: f.Action, Class: f.Class, Status: f.Status, Bytes: f.Bytes, Delay: f.Delay, Every: f.Every, Draw: f.Draw,
	}
}

// fault returns the fault of an event. It has no schedule.
func (e *Event) fault() Fault {
	return Fault{
		Point: e.Point, Action: e.Action, Class: e.Class, Status: e.Status, Bytes: e.Bytes, Delay: e.Delay, Every: e.Every, Draw: e.Draw,
	}
}

// index checks events and sorts them by call.
func index(events []Event) (map[call]Event, error) {
	if len(events) > MaxEvents {
		return nil, &PlanError{"the record", fmt.Sprintf("it has %d events, at most %d are allowed", len(events), MaxEvents)}
	}
	out := make(map[call]Event, len(events))
	for i, e := range events {
		at := fmt.Sprintf("event %d", i+1)
		f := e.fault()
		if err := f.check(at); err != nil {
			return nil, err
		}
		if e.Call == 0 {
			return nil, &PlanError{at + ".call", "calls are numbered from 1"}
		}
		c := call{e.Point, e.Call}
		if _, ok := out[c]; ok {
			return nil, &PlanError{at + ".call", fmt.Sprintf("call %d at %s is there twice", e.Call, e.Point)}
		}
		out[c] = e
	}
	return out, nil
}

// WriteEvents writes a record as JSON, one event a line.
func WriteEvents(w io.Writer, events []Event) error {
	enc := json.NewEncoder(w)
	for i := range events {
		if err := enc.Encode(&events[i]); err != nil {
			return fmt.Errorf("fault: writing a record: %w", err)
		}
	}
	return nil
}

// ReadEvents reads what WriteEvents wrote, at most MaxRecord bytes. Empty lines
// are skipped. An error is a *PlanError, or the reader's.
func ReadEvents(r io.Reader) ([]Event, error) {
	s := bufio.NewScanner(io.LimitReader(r, MaxRecord+1))
	s.Buffer(nil, MaxPlan)
	events := []Event{}
	size := 0
	for line := 1; s.Scan(); line++ {
		raw := bytes.TrimSpace(s.Bytes())
		if size += len(s.Bytes()) + 1; size > MaxRecord {
			return nil, &PlanError{"the record", fmt.Sprintf("it has more than %d bytes", MaxRecord)}
		}
		if len(raw) == 0 {
			continue
		}
		var e Event
		var f Fault
		into := f.fields()
		into["call"], into["request_id"], into["peer"], into["draw"] = &e.Call, &e.Request, &e.Peer, &e.Draw
		if err := object(fmt.Sprintf("line %d", line), raw, into); err != nil {
			return nil, err
		}
		f.Draw = e.Draw
		events = append(events, newEvent(e.Call, Subject{e.Request, e.Peer}, f))
	}
	if err := s.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return nil, &PlanError{"the record", fmt.Sprintf("a line has more than %d bytes", MaxPlan)}
		}
		return nil, fmt.Errorf("fault: reading a record: %w", err)
	}
	_, err := index(events)
	return events, err
}
