package engine

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A fabric joins engines in one process: a Connector whose peers are other
// arenas. Loads copy and check bytes as the real one does.
type fabric struct {
	mu    sync.Mutex
	links map[connector.Incarnation]*link
}

type link struct {
	f      *fabric
	inc    connector.Incarnation
	arenas []*kv.Arena

	reports chan connector.LoadReport
	freed   chan []kv.BlockID

	hold   chan struct{}       // not nil: loads wait until it is closed
	posted chan kv.RequestID   // not nil: told of each load
	bad    func(tile int) bool // tiles that fail
	badOf  func(kv.RequestID, int) bool
	refuse error // of Verify
	twice  bool  // report twice
	inline bool  // report before Load returns
	deny   bool  // Grant gives nothing
	onLoad func(connector.LoadSpec)

	reported atomic.Int64 // loads

	mu       sync.Mutex
	leases   map[connector.LeaseID][]kv.BlockID
	cancels  map[kv.RequestID]chan struct{}
	tracked  map[connector.LeaseID]bool
	returned int
	revoked  int
	granted  int
	tiles    int // that were copied
	loads    int // whose report waits for the engine, or was taken
}

func (f *fabric) link(m *sim.Model) *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.links == nil {
		f.links = map[connector.Incarnation]*link{}
	}
	l := &link{
		f: f, arenas: m.Arenas(),
		reports: make(chan connector.LoadReport, 1024), freed: make(chan []kv.BlockID, 1024),
		leases: map[connector.LeaseID][]kv.BlockID{}, cancels: map[kv.RequestID]chan struct{}{},
		tracked: map[connector.LeaseID]bool{},
	}
	l.inc[0] = byte(len(f.links) + 1)
	f.links[l.inc] = l
	return l
}

func (l *link) Verify(*connector.Handoff, []kv.Token) error { return l.refuse }

func (l *link) Track(h *connector.Handoff) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tracked[h.Lease] = true
}

func (l *link) Untrack(h *connector.Handoff) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.tracked, h.Lease)
}

func (l *link) Reports() <-chan connector.LoadReport { return l.reports }
func (l *link) Freed() <-chan []kv.BlockID           { return l.freed }

func (l *link) Grant(s connector.LeaseSpec) *connector.Handoff {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.deny {
		return nil
	}
	l.granted++
	h := &connector.Handoff{
		EngineID: "p", Incarnation: l.inc, TP: len(l.arenas), BlockTokens: l.arenas[0].Layout().BlockTokens(),
		Tokens: len(s.Tokens), Digest: connector.TokenDigest(s.Tokens), Blocks: slices.Clone(s.Blocks),
	}
	binary.BigEndian.PutUint64(h.Lease[:], uint64(l.granted))
	h.Lease[15] = l.inc[0]
	l.leases[h.Lease] = h.Blocks
	return h
}

// end ends a lease, once.
func (l *link) end(id connector.LeaseID) bool {
	l.mu.Lock()
	b, ok := l.leases[id]
	delete(l.leases, id)
	l.mu.Unlock()
	if ok {
		l.freed <- b
	}
	return ok
}

func (l *link) Revoke(h *connector.Handoff) {
	if l.end(h.Lease) {
		l.mu.Lock()
		l.revoked++
		l.mu.Unlock()
	}
}

func (l *link) ReturnUnread(h *connector.Handoff) {
	l.mu.Lock()
	l.returned++
	l.mu.Unlock()
	l.f.peer(h).end(h.Lease)
}

func (f *fabric) peer(h *connector.Handoff) *link {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.links[h.Incarnation]
}

func (l *link) CancelLoad(id kv.RequestID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.cancels[id]; c != nil {
		close(c)
		delete(l.cancels, id)
	}
}

func (l *link) Load(s connector.LoadSpec) {
	s.Local = slices.Clone(s.Local)
	cancel := make(chan struct{})
	l.mu.Lock()
	l.cancels[s.ID] = cancel
	l.mu.Unlock()
	if l.onLoad != nil {
		l.onLoad(s)
	}
	if l.inline {
		l.load(s, cancel)
	} else {
		go l.load(s, cancel)
	}
	if l.posted != nil {
		l.posted <- s.ID
	}
}

func (l *link) load(s connector.LoadSpec, cancel chan struct{}) {
	rep := connector.LoadReport{ID: s.ID, From: s.FromTile, To: s.ToTile}
	if l.hold != nil {
		select {
		case <-l.hold:
		case <-cancel:
			rep.Canceled = true
		}
	}
	p := l.f.peer(s.Handoff)
	for i := s.FromTile; i < s.ToTile; i++ {
		if rep.Canceled || l.bad != nil && l.bad(i) || l.badOf != nil && l.badOf(s.ID, i) {
			rep.Invalid = append(rep.Invalid, i)
			l.scribble(s, i)
			continue
		}
		l.copyTile(p, s, i)
		rep.Valid++
	}
	if len(rep.Invalid) > 0 && !rep.Canceled {
		rep.Err = &connector.LoadError{Peer: "p", Class: connector.ClassSum, Tiles: rep.Invalid, Err: errors.New("bad bytes")}
	}
	l.mu.Lock()
	l.tiles += rep.Valid
	delete(l.cancels, s.ID)
	l.mu.Unlock()
	p.end(s.Handoff.Lease)
	l.reports <- rep
	l.reported.Add(1)
	if l.twice {
		l.reports <- rep
	}
	l.mu.Lock()
	l.loads++
	l.mu.Unlock()
}

// ended waits until n loads have reported.
func (l *link) ended(t *testing.T, n int) {
	t.Helper()
	for {
		l.mu.Lock()
		got := l.loads
		l.mu.Unlock()
		if got >= n {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("no report")
		}
		runtime.Gosched()
	}
}

func tileOf(blocks []kv.BlockID, blockTiles, i int) kv.TileID {
	return kv.TileID(int(blocks[i/blockTiles])*blockTiles + i%blockTiles)
}

// copyTile copies tile i from the arenas of p, whatever their ranks and block
// size.
func (l *link) copyTile(p *link, s connector.LoadSpec, i int) {
	ll, pl := l.arenas[0].Layout(), p.arenas[0].Layout()
	dst := tileOf(s.Local, ll.BlockTiles, i)
	src := tileOf(s.Handoff.Blocks, pl.BlockTiles, i)
	for h := range ll.Heads * len(l.arenas) {
		to, from := l.arenas[h/ll.Heads], p.arenas[h/pl.Heads]
		for layer := range ll.Layers {
			copy(to.Head(dst, layer, h%ll.Heads), from.Head(src, layer, h%pl.Heads))
		}
		sum := kv.SumHead(to.Tile(dst), ll, h%ll.Heads)
		if sum != from.Sums(src)[h%pl.Heads] {
			panic("fabric: a leased tile is not sealed")
		}
		to.SetSum(dst, h%ll.Heads, sum)
	}
}

// scribble leaves damage where a tile failed.
func (l *link) scribble(s connector.LoadSpec, i int) {
	for _, a := range l.arenas {
		t := a.Tile(tileOf(s.Local, a.Layout().BlockTiles, i))
		for j := range t {
			t[j] = 0xa5
		}
	}
}

func (l *link) counts() (returned, revoked, tiles, tracked, leases int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.returned, l.revoked, l.tiles, len(l.tracked), len(l.leases)
}
