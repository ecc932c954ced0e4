package backend

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// A Member is what a Tandem engine tells of itself in /server_info. It is empty
// for engines that tell nothing, such as vLLM's.
type Member struct {
	// Role is the kv_role of its connector, "aggregated" for an engine without
	// one, "router" for no engine at all.
	Role string `json:"role"`

	// Incarnation is drawn by each start of an engine; "" is unknown.
	Incarnation string `json:"incarnation"`

	// Fingerprint is equal for engines that can read each other's KV; "" is
	// unknown. Factors are what it sums up.
	Fingerprint string   `json:"fingerprint"`
	Factors     []Factor `json:"factors"`
}

// A Factor is one property that engines must have in common.
type Factor struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// readMember returns what info tells; it tells nothing when it has another form.
func readMember(info json.RawMessage) Member {
	var v struct {
		Tandem Member `json:"tandem"`
	}
	if json.Unmarshal(info, &v) != nil {
		return Member{}
	}
	return v.Tandem
}

// unable returns why the member cannot do what the operator listed it for, or
// "" where it can, or does not say.
func (m Member) unable(role Role) string {
	other := "--decode"
	if role == Decode {
		other = "--prefill"
	}
	switch {
	case m.Role == "router":
		return fmt.Sprintf("is a router, no engine: --%s wants the URL of an engine", role)
	case m.Role == "aggregated":
		return "has no KV connector: start it with --kv-transfer-config"
	case m.Role == "kv_consumer" && role == Prefill, m.Role == "kv_producer" && role == Decode:
		return fmt.Sprintf("its kv_role is %s, which cannot do --%s: should it be under %s?", m.Role, role, other)
	}
	return ""
}

// Misfit returns why two engines cannot exchange KV, or "" where they can as far
// as they tell: the first factor of m that o has with another value. The engines
// are called here and there in the answer.
func (m Member) Misfit(here string, o Member, there string) string {
	differ := func(name, mine, other string) string {
		return fmt.Sprintf("%s is %s on %s and %s on %s", name, clip(mine), here, clip(other), there)
	}
	if m.Incarnation != "" && m.Incarnation == o.Incarnation {
		return "they are one engine, which cannot read its own KV: give another one, or use this one without a router"
	}
	if m.Fingerprint == "" || o.Fingerprint == "" || m.Fingerprint == o.Fingerprint {
		return ""
	}
	values := make(map[string]string, len(o.Factors))
	for _, f := range o.Factors {
		values[f.Name] = f.Value
	}
	for _, f := range m.Factors {
		if v := values[f.Name]; v != f.Value {
			return differ(f.Name, f.Value, v)
		}
	}
	return differ("fingerprint", m.Fingerprint, o.Fingerprint)
}

func clip(s string) string {
	switch {
	case s == "":
		return "(absent)"
	case len(s) > 40:
		return s[:40] + "…"
	}
	return s
}

// ask completes the view of a backend that answered its probe with what the
// engine tells of itself. An engine that cannot do its role is not ready.
func (b *Backend) ask(ctx context.Context, v, old *View) {
	if b.silent {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, b.limits.Probe)
	defer cancel()
	status, body, err := b.get(ctx, "/server_info", nil, maxProbe)
	switch {
	case err == nil && status == http.StatusOK && json.Valid(body):
		v.Info, v.Member = body, readMember(body)
	case err == nil:
		b.silent = true // until it was away: it may be another one then
	default:
		v.Info, v.Member = old.Info, old.Member
	}
	if why := v.Member.unable(b.role); why != "" {
		v.State, v.Reason = NotReady, why
	}
}
