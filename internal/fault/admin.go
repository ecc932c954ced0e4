package fault

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
)

// AdminPath is where Admin answers; it has everything below, too.
const AdminPath = "/admin/chaos"

// Admin returns the HTTP front of i:
//
//	GET    /admin/chaos          its Status
//	PUT    /admin/chaos          a plan, as ParsePlan reads it; the new Status
//	DELETE /admin/chaos          Off; the new Status
//	GET    /admin/chaos/record   its events, one a line
//	PUT    /admin/chaos/replay   events to replay; the new Status
//
// What it does not do it answers with refuse, whose form is that of http.Error.
// Who may ask is for the caller to check.
func Admin(i *Injector, refuse func(w http.ResponseWriter, text string, status int)) http.Handler {
	return &admin{i, refuse}
}

type admin struct {
	in     *Injector
	refuse func(w http.ResponseWriter, text string, status int)
}

// ServeHTTP implements http.Handler.
func (a *admin) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	methods := map[string]map[string]func(http.ResponseWriter, *http.Request) error{
		AdminPath:             {http.MethodGet: a.status, http.MethodPut: a.set, http.MethodDelete: a.off},
		AdminPath + "/record": {http.MethodGet: a.record},
		AdminPath + "/replay": {http.MethodPut: a.replay},
	}[q.URL.Path]
	serve := methods[q.Method]
	switch {
	case methods == nil:
		a.refuse(w, "there is nothing at this path", http.StatusNotFound)
		return
	case serve == nil:
		w.Header().Set("Allow", strings.Join(keys(methods), ", "))
		a.refuse(w, "this path takes "+strings.Join(keys(methods), ", ")+" only", http.StatusMethodNotAllowed)
		return
	}
	if err := serve(w, q); err != nil {
		code := http.StatusInternalServerError
		if _, ok := errors.AsType[*PlanError](err); ok {
			code = http.StatusBadRequest
		}
		a.refuse(w, err.Error(), code)
	}
}

func (a *admin) status(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a.in.Status()) // the client may be gone
	return nil
}

func (a *admin) set(w http.ResponseWriter, q *http.Request) error {
	raw, err := io.ReadAll(io.LimitReader(q.Body, MaxPlan+1))
	if err != nil {
		return err
	}
	p, err := ParsePlan(raw)
	if err != nil {
		return err
	}
	if err := a.in.Set(p); err != nil {
		return err
	}
	a.in.cfg.Log.Warn("chaos plan set", "faults", p.what(), "from", q.RemoteAddr)
	return a.status(w, q)
}

func (a *admin) off(w http.ResponseWriter, q *http.Request) error {
	a.in.Off()
	a.in.cfg.Log.Warn("chaos off", "from", q.RemoteAddr)
	return a.status(w, q)
}

func (a *admin) record(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/jsonl")
	_ = WriteEvents(w, a.in.Events()) // the client may be gone
	return nil
}

func (a *admin) replay(w http.ResponseWriter, q *http.Request) error {
	events, err := ReadEvents(q.Body)
	if err != nil {
		return err
	}
	if err := a.in.Replay(events); err != nil {
		return err
	}
	a.in.cfg.Log.Warn("chaos replay set", "events", len(events), "from", q.RemoteAddr)
	return a.status(w, q)
}
