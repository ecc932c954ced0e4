package simulation

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"tandem/internal/connector"
	"tandem/internal/connector/core"
	"tandem/internal/fault"
	"tandem/internal/kv"
)

// A load is the shell of one core.Load.
type load struct {
	s      *shell
	spec   connector.LoadSpec
	core   *core.Load
	until  time.Time
	timer  *event
	wait   *waiter
	call   *message
	pause  *event // before the claim is sent again
	view   *view
	sums   []uint64
	reads  []*read
	landed int
	over   bool

	freezes int // of the process, at the beginning
}

// Load implements engine.Connector.
func (s *shell) Load(spec connector.LoadSpec) {
	h := spec.Handoff
	blockTiles := s.n.model.BlockTokens / kv.TileTokens
	if spec.FromTile < 0 || spec.FromTile >= spec.ToTile || spec.ToTile > core.TilesOf(h.Offers(spec.Prompt)) ||
		spec.ToTile > len(spec.Local)*blockTiles {
		s.w.fail("%s loads tiles [%d, %d) of %d tokens into %d blocks", s.n.name, spec.FromTile, spec.ToTile, len(spec.Prompt), len(spec.Local))
		return
	}
	now := s.w.now()
	l := &load{
		s: s, spec: spec, freezes: s.n.freezes, until: now.Add(s.w.loadLimit),
		core: core.NewLoad(spec.ToTile-spec.FromTile, core.LoadLimits{Whole: s.w.loadLimit, Answer: s.w.noProgress, Tile: 3 * s.w.noProgress}, now),
	}
	s.w.logf(s.n, "loads tiles [%d, %d) of lease %s into blocks %v", spec.FromTile, spec.ToTile, short(h.Lease), spec.Local)
	s.loads = append(s.loads, l)
	l.wait = s.get(keyOf(h), uint64(h.Epoch), l.until, l.met)
	l.arm()
}

// CancelLoad implements engine.Connector.
func (s *shell) CancelLoad(id kv.RequestID) {
	for _, l := range s.loads {
		if l.spec.ID == id {
			// The load's own goroutine hears of it a little later.
			s.w.after(s.n, 10*time.Microsecond, "", func() { l.handle(core.LoadCancelEvent{}) })
		}
	}
}

// handle gives an event to the core and carries out what it decides.
func (l *load) handle(ev any) {
	if l.over {
		return
	}
	e := l.core.Handle(ev, l.s.w.now())
	if e.Claim {
		l.claim(0)
	}
	if e.Read {
		l.read()
	}
	if e.Stop {
		for _, r := range l.reads {
			r.halt()
		}
	}
	if e.Report != nil {
		l.end(e)
		return
	}
	l.arm()
}

func (l *load) arm() {
	next := l.core.Next()
	if next.IsZero() || l.timer.pending() && l.timer.at == next.UnixNano() {
		return
	}
	l.timer.cancel()
	l.timer = l.s.w.at(l.s.n, next, "", func() { l.handle(core.LoadTickEvent{}) })
}

// end carries the report out.
func (l *load) end(e core.LoadEffects) {
	s := l.s
	l.over = true
	l.timer.cancel()
	s.leave(l.wait)
	l.call.drop()
	l.pause.cancel()
	for _, r := range l.reads {
		if !r.over {
			s.w.fail("%s reports the load of lease %s while a read of it can still write", s.n.name, short(l.spec.Handoff.Lease))
		}
	}
	if late := s.w.now().Sub(l.until); late > 10*time.Millisecond && l.freezes == s.n.freezes {
		s.w.fail("%s: a load ends %v after its deadline", s.n.name, late)
	}
	if e.Return {
		s.giveBack(l.spec.Handoff)
	}
	if l.view != nil {
		l.view.release()
	}
	r := e.Report
	rep := connector.LoadReport{ID: l.spec.ID, From: l.spec.FromTile, To: l.spec.ToTile, Canceled: r.Canceled}
	for i, ok := range r.Valid {
		if ok {
			rep.Valid++
			l.genuine(l.spec.FromTile + i)
		} else {
			rep.Invalid = append(rep.Invalid, l.spec.FromTile+i)
		}
	}
	if r.Err != nil {
		rep.Err = &connector.LoadError{Peer: l.spec.Handoff.EngineID, Class: r.Class, Tiles: rep.Invalid, Err: r.Err}
	}
	s.w.logf(s.n, "load of lease %s ends: %d of %d tiles, cancelled %t, %v", short(l.spec.Handoff.Lease), rep.Valid, len(r.Valid), r.Canceled, r.Err)
	s.loads = slices.DeleteFunc(s.loads, func(o *load) bool { return o == l })
	s.w.cover.Load.Add(l.core.Moves())
	s.Untrack(l.spec.Handoff)
	s.reports <- rep
	s.n.kick()
}

// met takes the snapshot, or why there is none.
func (l *load) met(v *view, err error) {
	if l.over {
		if v != nil {
			v.release()
		}
		return
	}
	h := l.spec.Handoff
	if err != nil {
		class := core.ClassRefused
		var se *shakeError
		if errors.As(err, &se) {
			class = se.class
		}
		if errors.Is(err, errTime) && !l.s.w.now().Before(l.until) {
			class = core.ClassTimeout
		}
		l.handle(core.LoadPeerEvent{Class: class, Err: err})
		return
	}
	l.view = v
	if v.hello.blockTokens != h.BlockTokens || v.hello.tp != h.TP {
		l.handle(core.LoadPeerEvent{Class: core.ClassSetup, Err: errors.New("another geometry")})
		return
	}
	l.handle(core.LoadPeerEvent{Reads: len(v.spans)})
}

// reclaims is how often a claim is sent again over a new connection, while the
// peer has not noticed that the one before has ended.
const reclaims = 10

// claim sends the claim: attempt 0 over the connection that is there, the others
// over a new one.
func (l *load) claim(attempt int) {
	s, h := l.s, l.spec.Handoff
	ask := core.Claim{
		Incarnation: h.Incarnation, Lease: h.Lease, Epoch: h.Epoch, From: l.spec.FromTile, To: l.spec.ToTile,
		Digest: connector.TokenDigest(l.spec.Prompt[:min(h.Tokens, len(l.spec.Prompt))]), Tokens: h.Tokens, Factors: factors,
		Want: max(l.until.Sub(s.w.now()), 0),
	}
	f, hit := s.n.faults.Decide(fault.Claim, fault.Subject{Request: string(l.spec.ID), Peer: h.Addr})
	t := troubleOf(f, hit)
	if hit {
		s.w.logf(s.n, "fault at the claim of lease %s: %s %s", short(h.Lease), f.Action, f.Class)
		if f.Action == fault.Error || f.Action == fault.Flip {
			s.w.struck(f.Cell())
		}
		switch {
		case f.Action == fault.Error && f.Class == core.ClassGone:
			// The lease is returned first; the claim waits for that.
			l.call = l.view.conn.send(connector.KindReturn, leaseList{h.Incarnation, []core.LeaseID{h.Lease}}, l.until, trouble{}, func(any, error) {
				l.call = l.view.conn.send(connector.KindClaim, ask, l.until, trouble{}, l.claimed(attempt))
			})
			return
		case f.Action == fault.Error:
			s.w.after(s.n, s.w.latency(), "", func() {
				l.handle(core.LoadClaimEvent{Class: f.Class, Err: errRefused})
			})
			return
		case f.Action == fault.Flip:
			switch f.Draw % 5 {
			case 0:
				ask.Epoch ^= 1 << (f.Draw >> 8 & 31)
			case 1:
				ask.From ^= 1 << 20
			case 2:
				ask.Tokens ^= 1
			case 3:
				ask.Digest[f.Draw>>8&31] ^= 4
			default:
				ask.Factors[f.Draw>>8&31] ^= 4
			}
		}
	}
	l.call = l.view.conn.send(connector.KindClaim, ask, l.until, t, l.claimed(attempt))
}

// claimed returns what takes the answer to a claim.
func (l *load) claimed(attempt int) func(any, error) {
	return func(answer any, err error) {
		s, h := l.s, l.spec.Handoff
		switch {
		case errors.Is(err, errGone) && attempt == 0:
			// The connection had ended without anybody noticing: a fresh one may be
			// tried.
			old := l.view
			s.peer(core.PeerLostEvent[*view]{Key: keyOf(h), View: old})
			l.wait = s.get(keyOf(h), uint64(h.Epoch), l.until, func(v *view, err error) {
				switch {
				case l.over:
					if v != nil {
						v.release()
					}
				case err != nil:
					class := core.ClassHandshake
					var se *shakeError
					if errors.As(err, &se) {
						class = se.class
					} else if !s.w.now().Before(l.until) {
						class = core.ClassTimeout
					}
					l.handle(core.LoadClaimEvent{Class: class, Err: err})
				case len(v.spans) != len(old.spans):
					v.release()
					l.handle(core.LoadClaimEvent{Class: core.ClassHandshake, Err: errors.New("another geometry")})
				default:
					l.view = v
					old.release()
					l.claim(1)
				}
			})
		case err != nil:
			class := core.ClassHandshake
			if errors.Is(err, errRefused) {
				class = core.ClassRefused
			} else if errors.Is(err, errTime) {
				class = core.ClassTimeout
			}
			l.handle(core.LoadClaimEvent{Class: class, Err: err})
		default:
			a := answer.(claimAnswer)
			if a.verdict == core.VerdictBusy && attempt > 0 && attempt <= reclaims {
				l.pause = s.w.after(s.n, time.Millisecond<<(attempt-1), "", func() {
					if !l.over {
						l.claim(attempt + 1)
					}
				})
				return
			}
			l.sums = a.sums
			n := l.spec.ToTile - l.spec.FromTile
			l.handle(core.LoadClaimEvent{Verdict: a.verdict, Limit: a.limit, Sums: len(a.sums) == n*l.view.hello.heads*h.TP})
		}
	}
}

// A read moves what one rank of the peer has for one of ours.
type read struct {
	l        *load
	at       int
	span     core.Span
	strides  core.Strides
	local    []int32
	remote   []int32
	verified []bool
	bad      int
	stall    *event // the no-progress limit
	next     *event // the next tile lands
	stopping bool
	late     bool // the next tile was delayed already
	over     bool
	fault    fault.Fault
	hit      bool
	stopAt   int // tiles that land before the fault of the whole read, or len(local)
}

// read starts one read for each pair of ranks.
func (l *load) read() {
	s, h := l.s, l.spec.Handoff
	n := l.spec.ToTile - l.spec.FromTile
	blockTiles := s.n.model.BlockTokens / kv.TileTokens
	local, remote := make([]int32, n), make([]int32, n)
	for i := range n {
		local[i] = core.TileIn(l.spec.Local, blockTiles, l.spec.FromTile+i)
		remote[i] = core.TileIn(h.Blocks, h.BlockTokens/kv.TileTokens, l.spec.FromTile+i)
	}
	layout := s.n.mem.Arenas()[0].Layout()
	for i, sp := range l.view.spans {
		r := &read{
			l: l, at: i, span: sp, strides: sp.Strides(layout, l.view.hello.heads), local: local, remote: remote,
			verified: make([]bool, n), stopAt: n,
		}
		l.reads = append(l.reads, r)
	}
	for _, r := range slices.Clone(l.reads) {
		r.post()
	}
}

// post begins the read.
func (r *read) post() {
	l, s := r.l, r.l.s
	c := l.view.conn
	c.reads = append(c.reads, r)
	r.progress()
	sub := fault.Subject{Request: string(l.spec.ID), Peer: l.spec.Handoff.Addr}
	late := s.w.latency()
	if f, hit := s.n.faults.Decide(fault.ReadPost, sub); hit {
		s.w.logf(s.n, "fault at the posting of read %d of lease %s: %s %s", r.at, short(l.spec.Handoff.Lease), f.Action, f.Class)
		s.w.struck(f.Cell())
		switch f.Action {
		case fault.Error:
			r.next = s.w.after(s.n, late, "", func() { r.end(classError(f.Class)) })
			return
		case fault.Blackhole:
			return
		case fault.Cut:
			c.end("cut at a read")
			return
		default:
			late += time.Duration(f.Delay)
		}
	}
	r.fault, r.hit = s.n.faults.Decide(fault.ReadPiece, sub)
	if r.hit {
		s.w.logf(s.n, "fault in read %d of lease %s: %s %s", r.at, short(l.spec.Handoff.Lease), r.fault.Action, r.fault.Class)
		if sized(r.fault.Cell()) {
			r.stopAt = min(len(r.local)-1, int(r.fault.Bytes)/(r.strides.Pieces*r.strides.Len))
		}
	}
	if c.ended {
		r.next = s.w.after(s.n, late, "", func() { r.end(errGone) })
		return
	}
	r.next = s.w.after(s.n, late, "", func() {
		if !s.w.mapped && !r.allowed() {
			r.end(errLease)
			return
		}
		r.land(0)
	})
}

// allowed asks the serving side.
func (r *read) allowed() bool {
	l := r.l
	to := l.view.conn.to
	if to.shell.hit() || !to.alive {
		return true // what follows ends otherwise
	}
	c, ok := to.shell.claims[l.spec.Handoff.Lease]
	if !ok || c.From != l.view.conn.id || c.Epoch != l.spec.Handoff.Epoch {
		return false
	}
	for _, t := range r.remote {
		if !slices.Contains(c.Blocks, kv.BlockID(int(t)*kv.TileTokens/l.spec.Handoff.BlockTokens)) {
			return false
		}
	}
	return true
}

func classError(c core.LoadClass) error {
	switch c {
	case core.ClassTimeout:
		return errStalled
	case core.ClassGone:
		return errLease
	default:
		return errGone
	}
}

// progress starts the no-progress limit anew.
func (r *read) progress() {
	if r.stopping {
		return
	}
	r.stall.cancel()
	r.stall = r.l.s.w.after(r.l.s.n, r.l.s.w.noProgress, "", func() { r.end(errStalled) })
}

// land lets tile i land and go on with the next one.
func (r *read) land(i int) {
	if r.over {
		return
	}
	l, w := r.l, r.l.s.w
	c := l.view.conn
	to := c.to
	if !w.mapped && c.ended {
		return // its end is on the way
	}
	if !w.mapped && (to.frozen || to.silent) { // nothing comes from there
		r.next = w.after(l.s.n, 50*time.Millisecond, "", func() { r.land(i) })
		return
	}
	if i == r.stopAt && i < len(r.local) {
		w.struck(r.fault.Cell())
		switch r.fault.Action {
		case fault.Error:
			r.end(classError(r.fault.Class))
		case fault.Cut:
			c.end("cut in a read")
		default: // stall
		}
		return
	}
	mine := r.hit && !sized(r.fault.Cell()) && r.struck(i)
	if mine && !r.late {
		w.struck(r.fault.Cell())
	}
	if mine && r.fault.Action == fault.Delay && !r.late {
		r.late = true
		r.next = w.after(l.s.n, time.Duration(r.fault.Delay), "", func() { r.land(i) })
		return
	}
	r.late = false
	from := i
	if mine && r.fault.Action == fault.OtherTile {
		from = (i + 1) % len(r.local)
	}
	tile := l.s.n.mem.Arenas()[r.span.Local].Tile(kv.TileID(r.local[i]))
	if !mine || r.fault.Action != fault.Drop {
		r.copy(tile, from)
	}
	if mine && r.fault.Action == fault.Flip {
		st := r.strides
		at := int(r.fault.Draw % uint64(st.Len))
		tile[st.LocalOff+at] ^= 1 << (r.fault.Draw >> 8 & 7)
	}
	err := r.span.CheckSums(l.s.n.mem.Arenas()[r.span.Local], kv.TileID(r.local[i]), l.sums, l.view.hello.heads, i, len(r.local))
	if err != nil {
		r.bad++
	} else {
		r.verified[i] = true
	}
	if mine && r.fault.Action == fault.Duplicate {
		r.copy(tile, from)
	}
	l.landed++
	r.progress()
	if i+1 < len(r.local) {
		r.next = w.after(l.s.n, w.between(5*time.Microsecond, time.Millisecond), "", func() { r.land(i + 1) })
	} else {
		r.next = w.after(l.s.n, 5*time.Microsecond, "", func() {
			if r.bad > 0 {
				r.end(fmt.Errorf("%d tiles do not match", r.bad))
			} else {
				r.end(nil)
			}
		})
	}
	l.handle(core.LoadProgressEvent{Landed: l.landed})
}

// struck reports whether the fault means tile i.
func (r *read) struck(i int) bool {
	n := len(r.local)
	if r.fault.Every == 0 {
		return i == int(r.fault.Draw%uint64(n))
	}
	every := min(r.fault.Every, n)
	return (i+1)%every == 0
}

// copy moves the pieces of tile from of the peer.
func (r *read) copy(local []byte, from int) {
	st := r.strides
	remote := r.l.view.mem[r.span.Remote].Tile(kv.TileID(r.remote[from]))
	for p := range st.Pieces {
		lo, ro := st.LocalOff+p*st.LocalStep, st.RemoteOff+p*st.RemoteStep
		copy(local[lo:lo+st.Len], remote[ro:ro+st.Len])
	}
}

// halt cancels the read: it is terminal when nothing more can land.
func (r *read) halt() {
	if r.over || r.stopping {
		return
	}
	r.stopping = true
	s := r.l.s
	r.stall.cancel()
	r.stall = s.w.after(s.n, s.w.between(time.Microsecond, 2*time.Millisecond), "", func() { r.end(errCancel) })
}

// end makes the read terminal.
func (r *read) end(err error) {
	if r.over {
		return
	}
	r.over = true
	r.stall.cancel()
	r.next.cancel()
	c := r.l.view.conn
	c.reads = slices.DeleteFunc(c.reads, func(o *read) bool { return o == r })
	class := core.ClassRead
	switch {
	case errors.Is(err, errStalled):
		class = core.ClassTimeout
	case errors.Is(err, errLease):
		class = core.ClassGone
	}
	r.l.handle(core.LoadReadEvent{Read: r.at, Class: class, Verified: r.verified, Bad: r.bad, Err: err})
}
