package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"testing"

	"tandem/internal/fault"
	"tandem/test/cluster"
)

// admin asks the admin route of a process that was started for faults.
func admin(method string, p *cluster.Proc, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequest(method, p.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("%s of %s%s: status %d %.300s", method, p.Name, path, resp.StatusCode, out)
	}
	return out, err
}

// arm sets a plan.
func arm(p *cluster.Proc, plan fault.Plan) error {
	raw, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	_, err = admin(http.MethodPut, p, fault.AdminPath, raw)
	return err
}

// disarm ends all faults of a process; its counts stay.
func disarm(p *cluster.Proc) error {
	_, err := admin(http.MethodDelete, p, fault.AdminPath, nil)
	return err
}

// fired returns how often a process injected a cell's fault since its plan was set.
func fired(p *cluster.Proc, cell fault.Cell) (int, error) {
	s, err := chaosOf(p)
	for _, c := range s.Counts {
		if c.Point == cell.Point && c.Action == cell.Action {
			return int(c.Fired), err
		}
	}
	return 0, err
}

// firedAll returns how many faults a process injected since its plan was set.
func firedAll(p *cluster.Proc) (int, error) {
	s, err := chaosOf(p)
	return int(s.Fired), err
}

func chaosOf(p *cluster.Proc) (s fault.Status, err error) {
	raw, err := admin(http.MethodGet, p, fault.AdminPath, nil)
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	return s, err
}

// record returns the faults that a process injected, one by one.
func record(p *cluster.Proc) ([]fault.Event, error) {
	raw, err := admin(http.MethodGet, p, fault.AdminPath+"/record", nil)
	if err != nil {
		return nil, err
	}
	return fault.ReadEvents(bytes.NewReader(raw))
}

// chaos starts a fleet whose processes take faults.
func (c *campaign) chaos(t testing.TB, a parts) (*fleet, error) {
	const enable = "--enable-chaos"
	return c.start(t, parts{
		own:     a.own,
		prefill: append([]string{enable}, a.prefill...),
		decode:  append([]string{enable}, a.decode...),
		router:  append([]string{enable}, a.router...),
	})
}
