package fault

import (
	"crypto/sha256"
	"crypto/subtle"
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
// With a key, requests must bring it as a bearer token.
func Admin(i *Injector, key string) http.Handler { return &admin{i, key, sha256.Sum256([]byte(key))} }

type admin struct {
	in  *Injector
	key string
	sum [32]byte
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
	case !a.knows(q):
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, http.StatusUnauthorized, "the API key is missing or wrong")
		return
	case methods == nil:
		refuse(w, http.StatusNotFound, "there is nothing at this path")
		return
	case serve == nil:
		w.Header().Set("Allow", strings.Join(keys(methods), ", "))
		refuse(w, http.StatusMethodNotAllowed, "this path takes "+strings.Join(keys(methods), ", ")+" only")
		return
	}
	if err := serve(w, q); err != nil {
		code := http.StatusInternalServerError
		if _, ok := errors.AsType[*PlanError](err); ok {
			code = http.StatusBadRequest
		}
		refuse(w, code, err.Error())
	}
}

// knows reports whether a request may come in.
func (a *admin) knows(q *http.Request) bool {
	if a.key == "" {
		return true
	}
	scheme, token, _ := strings.Cut(q.Header.Get("Authorization"), " ")
	got := sha256.Sum256([]byte(token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], a.sum[:]) == 1
}

// refuse answers in the shape of OpenAI's errors.
func refuse(w http.ResponseWriter, code int, text string) {
	kind := "invalid_request_error"
	if code == http.StatusInternalServerError {
		kind = "server_error"
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// The client may be gone.
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": text, "type": kind, "param": nil, "code": code}})
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
