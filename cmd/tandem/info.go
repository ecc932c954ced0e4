package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"tandem/internal/backend"
	"tandem/internal/connector"
)

// An engineInfo is what `tandem status` and `tandem up` read of an engine's
// /server_info.
type engineInfo struct {
	Model    string        `json:"model"`
	Version  string        `json:"version"`
	Kernel   string        `json:"kernel"`
	Draining bool          `json:"draining"`
	Started  int64         `json:"started"`         // Unix seconds
	Chaos    string        `json:"chaos,omitempty"` // off, plan or replay; "": not enabled
	Tandem   connectorInfo `json:"tandem"`
}

// A connectorInfo is the engine's part of hand-offs and its blocks.
type connectorInfo struct {
	EngineID    string `json:"engine_id"`
	Role        string `json:"role"`
	Incarnation string `json:"incarnation,omitempty"`
	Address     string `json:"peer_address,omitempty"`
	Epoch       uint64 `json:"epoch"`
	// Fingerprint is equal for engines that can read each other's KV; Factors are
	// what it sums up.
	Fingerprint string           `json:"fingerprint,omitempty"`
	Factors     []backend.Factor `json:"factors,omitempty"`

	Leases      int        `json:"leases"`
	Claimed     int        `json:"claimed"`
	Loads       int        `json:"loads"`
	Peers       []peerInfo `json:"peers"`
	Running     int        `json:"running"`
	Waiting     int        `json:"waiting"`
	Loading     int        `json:"loading"`
	Blocks      int        `json:"blocks"`
	BlocksFree  int        `json:"blocks_free"`
	BlocksIndex int        `json:"blocks_in_prefix_index"`
	BlocksLease int        `json:"blocks_leased"`
}

// A peerInfo is one peer that the engine reads from.
type peerInfo struct {
	EngineID string `json:"engine_id"`
	Address  string `json:"address"`
	State    string `json:"state"`
	Epoch    uint64 `json:"epoch"`
	Path     string `json:"path"`
	Reason   string `json:"reason"`
	Error    string `json:"error,omitempty"`
}

// info gives /server_info what only the command knows: all parts together.
func (s *assembly) info() map[string]any {
	st := s.engine.Status().Stats
	c := connectorInfo{
		Role: "aggregated", Running: st.Running, Waiting: st.Waiting, Loading: st.Loading,
		Blocks: st.Blocks, BlocksFree: st.Free, BlocksIndex: st.Indexed, BlocksLease: st.Leased, Peers: []peerInfo{},
	}
	if s.connector != nil {
		cs := s.connector.Status()
		c.EngineID, c.Role, c.Address, c.Epoch = string(cs.Engine), string(cs.Role), cs.Addr, uint64(cs.Epoch)
		c.Incarnation = hex.EncodeToString(cs.Incarnation[:])
		c.Leases, c.Claimed, c.Loads = cs.Leases.Live, cs.Leases.Claimed, cs.Loads
		c.Fingerprint, c.Factors = fingerprint(s.connector.Factors())
		for _, p := range cs.Peers {
			c.Peers = append(c.Peers, peerInfo{string(p.Engine), p.Addr, p.State, uint64(p.Epoch), p.Path, p.Why, p.Err})
		}
	}
	out := map[string]any{"tandem": c}
	if s.chaos != nil {
		out["chaos"] = s.chaos.Status().Mode
	}
	return out
}

// fingerprint condenses the factors for the router's comparison; engines compare
// the factors themselves.
func fingerprint(factors []connector.Factor) (sum string, list []backend.Factor) {
	h := sha256.New()
	for _, f := range factors {
		fmt.Fprintf(h, "%q=%q\n", f.Name, f.Value)
		list = append(list, backend.Factor(f))
	}
	return hex.EncodeToString(h.Sum(nil)), list
}

func randomID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
