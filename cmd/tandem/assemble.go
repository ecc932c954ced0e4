package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/internal/fault"
	"tandem/internal/kv"
	"tandem/internal/server"
	"tandem/internal/telemetry"
	"tandem/internal/transfer"
)

// An assembly is the parts of one engine process.
type assembly struct {
	o         *serveOptions
	log       *slog.Logger
	engine    *engine.Engine
	connector *connector.Connector // nil: none
	server    *server.Server
	chaos     *fault.Injector // nil: not enabled
	metrics   *telemetry.Engine
}

// assemble wires the parts above the model.
func assemble(o *serveOptions, m *loaded, connect transferConfig, log *slog.Logger) (s *assembly, err error) {
	names := o.names
	if len(names) == 0 {
		names = []string{m.name}
	}
	s = &assembly{o: o, log: log}
	info, arenas := m.Info(), m.Arenas()
	metrics := telemetry.NewEngine(telemetry.EngineConfig{
		Model: names[0], Version: version, MaxModelLen: info.MaxLen,
		BlockTokens: arenas[0].Layout().BlockTokens(), Blocks: arenas[0].Blocks(), LostLines: o.logs.Lost,
	})
	s.metrics = metrics
	defer func() {
		if err != nil {
			err = errors.Join(err, s.discard())
		}
	}()
	cfg := engine.Config{
		Model: m, ID: kv.EngineID(connect.EngineID), MaxBatchedTokens: o.maxBatched, MaxSeqs: o.maxSeqs, MaxModelLen: o.maxLen, StallLimit: o.stall,
		Priority: o.policy == "priority", NoPrefixCache: o.noPrefix || !o.prefix, Policy: connect.Policy, Seed: o.seed,
		Metrics: metrics.Engine, Log: log,
	}
	sc := server.Config{
		Tokenizer: m.tokenizer, Template: m.template, ModelNames: names, Version: version, Info: s.info,
		MetricsHandler: metrics.Handler, APIKey: o.apiKey, AllowRequestPolicy: o.ownPolicy, Metrics: metrics.Server, Log: log,
	}
	if o.quiet {
		sc.Log = slog.New(aboveInfo{log.Handler()})
	}
	if o.chaos {
		log.Warn(chaosEnabled)
		s.chaos = fault.New(fault.Config{Log: log, Kill: func() { o.logs.Flush(); killSelf() }})
	}
	if !o.noConnector {
		if s.connector, err = s.openConnector(connect, info, arenas, metrics.Connector); err != nil {
			return s, err
		}
		cfg.Connector, sc.Connector = s.connector, s.connector
		cfg.ID = s.connector.Status().Engine
	}
	if s.engine, err = engine.New(cfg); err != nil {
		return s, err
	}
	sc.Engine = s.engine
	metrics.Watch(s.engine.Status, s.leases())
	s.server, err = server.New(sc)
	return s, err
}

// aboveInfo drops the lines that tell of ordinary requests.
type aboveInfo struct{ slog.Handler }

// Enabled implements slog.Handler.
func (h aboveInfo) Enabled(ctx context.Context, l slog.Level) bool {
	return l > slog.LevelInfo && h.Handler.Enabled(ctx, l)
}

func (s *assembly) leases() func() connector.LeaseStats {
	if s.connector == nil {
		return nil
	}
	return func() connector.LeaseStats { return s.connector.Status().Leases }
}

// openConnector binds the peer address: a taken one ends the start.
func (s *assembly) openConnector(t transferConfig, info engine.ModelInfo, arenas []*kv.Arena, m connector.Metrics) (*connector.Connector, error) {
	if t.EngineID == "" {
		t.EngineID = randomID()
	}
	factors := make([]connector.Factor, len(info.Fingerprint))
	for i, f := range info.Fingerprint {
		factors[i] = connector.Factor(f)
	}
	// One folder for all engines of a user: who starts removes the sockets there of
	// those that were killed.
	dir := cmp.Or(s.o.socketDir, filepath.Join(os.TempDir(), fmt.Sprintf("tandem-%d", os.Geteuid())))
	dir, err := filepath.Abs(dir) // peers look for it from where they were started
	if err != nil {
		return nil, fmt.Errorf("finding the folder for the peer socket: %w; give --peer-socket-dir from / on", err)
	}
	if othersReach(s.o.tokenFile) {
		s.log.Warn("others can read the cluster token", "do", "chmod 600 "+s.o.tokenFile)
	}
	var decorate func(connector.Network) connector.Network
	if s.chaos != nil {
		decorate = func(n connector.Network) connector.Network { return fault.Network(n, s.chaos, arenas) }
	}
	c, err := connector.New(connector.Config{
		Decorate: decorate,
		EngineID: kv.EngineID(t.EngineID), Role: t.Role, Arenas: arenas, Fingerprint: factors, Token: s.o.token,
		Listen: s.o.peerListen, Advertise: s.o.advertise, UnixDir: dir, Copiers: t.Extra.Threads, Paths: t.Extra.Paths,
		LeaseDuration: seconds(t.Extra.LeaseSeconds), HandshakeTimeout: seconds(t.Extra.HandshakeSeconds),
		LoadTimeout: seconds(t.Extra.LoadSeconds), NoProgress: seconds(t.Extra.StallSeconds), PeerIdle: seconds(t.Extra.EngineTTLSeconds),
		Log: s.log, Metrics: m,
	})
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		err = fmt.Errorf("%w; choose another --peer-listen, port 0 for a free one", err)
	case errors.Is(err, transfer.ErrSocketDir), errors.Is(err, transfer.ErrSocketPath):
		err = fmt.Errorf("%w; choose another with --peer-socket-dir", err)
	}
	return c, err
}

// othersReach reports whether every user of the machine can read or write a file.
// Of a pipe, by which `tandem up` gives its token, nobody can.
func othersReach(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode().Perm()&0o006 != 0
}

// readToken reads the cluster token: hexadecimal digits, or any text.
func readToken(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--cluster-token-file: %w", err)
	}
	text = bytes.TrimSpace(text)
	if len(text) < 32 || len(text) > 4096 {
		return nil, fmt.Errorf("--cluster-token-file %s: %d bytes; make a token of 32 to 4096 with: openssl rand -hex 32", path, len(text))
	}
	if raw, err := hex.DecodeString(string(text)); err == nil {
		return raw, nil
	}
	return text, nil
}

// discard gives back what was opened when something failed before run.
func (s *assembly) discard() error {
	if s.connector == nil {
		return nil
	}
	return s.connector.Close()
}

// run serves until ctx ends, then stops from the top down: no new requests,
// running ones and leases end within the grace, then the engine, then the
// connector, and last of all the memory that peers read.
func (s *assembly) run(ctx context.Context, ln net.Listener) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	engineCtx, stopEngine := context.WithCancel(base)
	defer stopEngine()
	serving, stopServing := context.WithCancel(ctx)
	defer stopServing()

	engineDone, connectorDone := make(chan error, 1), make(chan error, 1)
	go func() {
		err := s.engine.Run(engineCtx)
		if err != nil {
			// The process stays: /health tells why, and every request gets an
			// error at once.
			s.log.Error("the engine ended", "error", err)
		}
		engineDone <- err
	}()
	connCtx, stopConnector := context.WithCancel(base)
	defer stopConnector()
	if s.connector == nil {
		connectorDone <- nil
	} else {
		go func() {
			err := s.connector.Run(connCtx)
			if err != nil {
				s.log.Error("the connector ended", "error", err)
				stopServing()
			}
			connectorDone <- err
		}()
	}
	reporting, stopReports := context.WithCancel(base)
	defer stopReports()
	var reports sync.WaitGroup
	reports.Go(func() { s.metrics.Run(reporting, s.log) })
	s.log.Info("engine started", s.describe(listenerURL(ln))...)
	err := serveHTTP(serving, ln, mountChaos(s.server.Handler(), s.chaos, s.o.apiKey), s.log, s.o.grace, s.drain, s.server.Stop)
	stopEngine()
	engineErr := <-engineDone
	stopConnector()
	connErr := <-connectorDone
	stopReports()
	reports.Wait()
	s.log.Info("engine stopped")
	return errors.Join(err, engineErr, connErr)
}

// drain ends admission and waits for what runs and for the leases of peers.
func (s *assembly) drain(ctx context.Context) {
	began := time.Now()
	s.server.Drain()
	requests := s.engine.Drain(ctx)
	leases := 0
	if s.connector != nil {
		leases = s.connector.Drain(ctx)
	}
	s.log.Info("drained", "requests_left", requests, "leases_left", leases, "seconds", time.Since(began).Seconds())
}

func (s *assembly) describe(url string) []any {
	out := []any{"url", url}
	if s.connector != nil {
		c := s.connector.Status()
		out = append(out, "engine_id", string(c.Engine), "role", string(c.Role), "peer_address", c.Addr)
	}
	return out
}
