package connector

import (
	"time"

	"tandem/internal/bystander"
	"tandem/internal/kv"
)

// A Transfer is one read from one rank of a peer that brought all its tiles.
type Transfer struct {
	Peer     kv.EngineID
	Bytes    int
	Tiles    int
	Pieces   int           // contiguous ranges that were read: one of a tile, or one of each layer and side where ranks differ
	Duration time.Duration // from posting to the end
	Post     time.Duration // of posting
	Path     string
}

// Metrics receives what happens. Nil functions are skipped; none may block. What
// a function does, its panic included, changes nothing here.
type Metrics struct {
	Transfer     func(Transfer)
	Failed       func(peer kv.EngineID, class LoadClass) // a load
	Expired      func()                                  // a lease ran out on P, or D met one that had
	ReturnFailed func(peer kv.EngineID)                  // a return that P never acknowledged
	Handshake    func(ok bool, d time.Duration)          // one attempt
	Loaded       func(tiles int, d time.Duration)        // a load that ended with every tile valid
}

// fill makes every function safe to call.
func (m *Metrics) fill(h *bystander.Hooks) {
	m.Transfer = bystander.Safe1(h, m.Transfer)
	m.Failed = bystander.Safe2(h, m.Failed)
	m.Expired = bystander.Safe0(h, m.Expired)
	m.ReturnFailed = bystander.Safe1(h, m.ReturnFailed)
	m.Handshake = bystander.Safe2(h, m.Handshake)
	m.Loaded = bystander.Safe2(h, m.Loaded)
}
