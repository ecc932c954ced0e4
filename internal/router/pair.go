package router

import (
	"fmt"
	"strings"

	"tandem/internal/backend"
)

// misfit returns why a prefill and a decode engine cannot exchange KV, or "".
func misfit(p, d *backend.Backend) string {
	if p.URL() == d.URL() {
		return fmt.Sprintf("engine %s is given as --prefill and as --decode and cannot read its own KV: give another engine as one of them, or use this one without a router", p.Name())
	}
	why := p.View().Member.Misfit(p.Name(), d.View().Member, d.Name())
	if why == "" {
		return ""
	}
	return fmt.Sprintf("prefill engine %s does not fit decode engine %s: %s", p.Name(), d.Name(), why)
}

// others returns the pool that b's partners are in.
func (r *Router) others(b *backend.Backend) *backend.Pool {
	if b.Role() == backend.Prefill {
		return r.decode
	}
	return r.prefill
}

// partnerless returns why b fits no ready engine of the other role; "" where it
// fits one, or none is ready.
func (r *Router) partnerless(b *backend.Backend) (why string) {
	for _, o := range r.others(b).All() {
		if o.View().State != backend.Ready {
			continue
		}
		p, d := b, o
		if b.Role() == backend.Decode {
			p, d = o, b
		}
		w := misfit(p, d)
		if w == "" {
			return ""
		}
		if why == "" {
			why = w
		}
	}
	return why
}

// noneReady is noBackend with the reason of each engine of the role.
func noneReady(role backend.Role, pool *backend.Pool) *failure {
	fail := noBackend(role)
	reasons := make([]string, 0, len(pool.All()))
	for _, b := range pool.All() {
		v := b.View()
		reasons = append(reasons, fmt.Sprintf("%s is %s: %s", b.Name(), v.State, v.Reason))
	}
	fail.Message = fmt.Sprintf("no %s engine is ready: %s", role, strings.Join(reasons, "; "))
	return fail
}

// unready returns the answer for when no pair can serve, or nil.
func (r *Router) unready() *failure {
	if r.prefill.Ready() == 0 {
		return noneReady(backend.Prefill, r.prefill)
	}
	if r.decode.Ready() == 0 {
		return noneReady(backend.Decode, r.decode)
	}
	var why string
	for _, b := range r.prefill.All() {
		if b.View().State != backend.Ready {
			continue
		}
		w := r.partnerless(b)
		if w == "" {
			return nil
		}
		why = w
	}
	fail := noBackend(backend.Decode)
	fail.Message = "no ready pair fits: " + why
	return fail
}

// unfit returns the ready engines of role that a flow must not use: decode
// engines that do not fit the prefill engine it used, prefill engines that no
// decode engine fits.
func (r *Router) unfit(role backend.Role, prefill *backend.Backend) (not []*backend.Backend) {
	if role == backend.Prefill {
		for _, b := range r.prefill.All() {
			if r.partnerless(b) != "" {
				not = append(not, b)
			}
		}
		return not
	}
	if prefill == nil {
		return nil
	}
	for _, b := range r.decode.All() {
		if misfit(prefill, b) != "" {
			not = append(not, b)
		}
	}
	return not
}
