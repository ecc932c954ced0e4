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

	guard *bystander.Hooks // set by Config.fill
}

func (m *Metrics) transfer(t Transfer) {
	if m.Transfer != nil {
		defer m.guard.Catch()
		m.Transfer(t)
	}
}

func (m *Metrics) failed(peer kv.EngineID, c LoadClass) {
	if m.Failed != nil {
		defer m.guard.Catch()
		m.Failed(peer, c)
	}
}

func (m *Metrics) expired() {
	if m.Expired != nil {
		defer m.guard.Catch()
		m.Expired()
	}
}

func (m *Metrics) returnFailed(peer kv.EngineID) {
	if m.ReturnFailed != nil {
		defer m.guard.Catch()
		m.ReturnFailed(peer)
	}
}

func (m *Metrics) handshake(ok bool, d time.Duration) {
	if m.Handshake != nil {
		defer m.guard.Catch()
		m.Handshake(ok, d)
	}
}

func (m *Metrics) loaded(tiles int, d time.Duration) {
	if m.Loaded != nil {
		defer m.guard.Catch()
		m.Loaded(tiles, d)
	}
}
