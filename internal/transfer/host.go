package transfer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// HostConfig says who a host is and where it listens.
type HostConfig struct {
	// Name of the engine, for the logs of others; at most 64 bytes are sent.
	Name string

	// Incarnation is the random identity of this process start. Zero: drawn.
	Incarnation [16]byte

	// Listen is a TCP address; port 0 takes a free one. Empty: 127.0.0.1:0.
	Listen string

	// Advertise is what others dial. Empty: the bound address.
	// A port 0 in it becomes the bound port.
	Advertise string

	// UnixDir is a directory for the unix socket over which memory files are
	// handed out. It is made with mode 0700 when it is missing and refused when
	// others may use it. Empty: no unix socket, so no memfd path to this host.
	UnixDir string

	// Token is the cluster token: at least 16 bytes that every engine holds.
	Token []byte

	// Directory joins the hosts of one process, so that their agents use the
	// mem path. Nil: peers in the same process are treated as any other.
	Directory *Directory

	Limits Limits

	// Log gets a line for a refused connection, at most one in ten seconds for
	// each host they come from, and likewise for what cannot be accepted. Nil: nothing
	// is logged.
	Log *slog.Logger
}

// A Directory lists the hosts of one process that know each other.
type Directory struct {
	mu    sync.Mutex
	hosts map[[16]byte]*Host
}

// NewDirectory returns an empty directory.
func NewDirectory() *Directory { return &Directory{hosts: map[[16]byte]*Host{}} }

func (d *Directory) add(h *Host) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.hosts[h.me.Incarnation] = h
	}
}

func (d *Directory) remove(h *Host) {
	if d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		delete(d.hosts, h.me.Incarnation)
	}
}

func (d *Directory) find(incarnation [16]byte) *Host {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.hosts[incarnation]
}

// A Caller is an authenticated peer that dialled this host, as one of its
// connections. Data connections count as the control connection they belong to.
type Caller struct {
	Incarnation [16]byte
	Conn        uint64 // unique in this host
	Name        string
}

// A Handler answers a call. Its context ends with the caller's connection. A
// *RefusedError, *EpochError, *BoundsError or ErrReleased reaches the caller as
// such, any other error as a RefusedError with code RefusedFault. The body is
// the handler's.
type Handler func(ctx context.Context, from Caller, body []byte) ([]byte, error)

// HostStats counts what a host has seen since its start.
type HostStats struct {
	Accepted  uint64 // incoming connections that proved the token
	Refused   uint64 // incoming connections with a wrong token or version
	BadFrames uint64 // connections closed because of a frame against the protocol
	Evicted   uint64 // unproved connections closed to make room
	Open      int    // authenticated incoming connections
}

// A Host is one engine's end of the peer protocol: a TCP address and a unix
// socket on which peers call it, and the connections over which it calls them.
//
// Handlers are set before Run. All other methods may be called from any
// goroutine, also before Run.
type Host struct {
	// Constant after NewHost.
	cfg      HostConfig
	me       identity
	limits   Limits
	tcp      net.Listener
	unix     *net.UnixListener // or nil
	unixPath string
	lock     *os.File // held while unixPath is ours, or nil
	addr     string

	// Set before Run.
	handlers     map[Kind]Handler
	notice       func(Caller, []byte)
	disconnected func(Caller)

	stop   chan struct{} // closed when Run ends
	wg     sync.WaitGroup
	counts struct{ accepted, refused, bad, evicted, next atomic.Uint64 }
	dials  dialer
	quiet  quiet // of the log lines of refuse

	mu       sync.Mutex
	stopped  bool
	agents   map[uint16]*Agent
	pending  map[net.Conn]uint64 // connections before their proof, with their age
	sessions map[uint64]*serverConn
}

// NewHost checks cfg and binds its addresses, so that a taken port is an error
// at once. Run must be called, if only with an ended context, to free them.
func NewHost(cfg HostConfig) (*Host, error) {
	if len(cfg.Token) < 16 {
		return nil, fmt.Errorf("transfer: a host needs a cluster token of at least 16 bytes, not %d", len(cfg.Token))
	}
	if cfg.Incarnation == [16]byte{} {
		_, _ = rand.Read(cfg.Incarnation[:]) // never fails
	}
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	h := &Host{
		cfg:      cfg,
		me:       identity{Incarnation: cfg.Incarnation, Name: cfg.Name[:min(len(cfg.Name), maxName)], Token: cfg.Token},
		limits:   cfg.Limits.withDefaults(),
		handlers: map[Kind]Handler{},
		stop:     make(chan struct{}),
		agents:   map[uint16]*Agent{},
		pending:  map[net.Conn]uint64{},
		sessions: map[uint64]*serverConn{},
	}
	h.dials.entries = map[string]*dialEntry{}
	var lc net.ListenConfig
	l, err := lc.Listen(context.Background(), "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("transfer: listening on peer address %s: %w", cfg.Listen, err)
	}
	h.tcp = l
	if h.addr, err = advertised(cfg.Advertise, l.Addr().String()); err == nil && cfg.UnixDir != "" {
		err = h.listenUnix(cfg.UnixDir)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	cfg.Directory.add(h)
	return h, nil
}

func advertised(want, bound string) (string, error) {
	if want == "" {
		return bound, nil
	}
	host, port, err := net.SplitHostPort(want)
	if err != nil {
		return "", fmt.Errorf("transfer: advertising %q: %w", want, err)
	}
	if port == "0" {
		_, port, _ = net.SplitHostPort(bound)
	}
	return net.JoinHostPort(host, port), nil
}

// listenUnix binds a socket in dir that only this user can reach, and removes
// the sockets there of hosts that were killed.
func (h *Host) listenUnix(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("transfer: making the socket directory: %w", err)
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("transfer: looking at the socket directory: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 || !ok || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("transfer: opening the socket directory %s: %w", dir, ErrSocketDir)
	}
	sweep(dir)
	path := filepath.Join(dir, fmt.Sprintf("peer-%x.sock", h.me.Incarnation[:8]))
	if len(path) > maxUnixPath {
		return fmt.Errorf("transfer: listening on %s: %w: %d bytes, at most %d", path, ErrSocketPath, len(path), maxUnixPath)
	}
	if h.lock = tryLock(path + ".lock"); h.lock == nil {
		return fmt.Errorf("transfer: unix socket %s belongs to a running host", path)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return errors.Join(fmt.Errorf("transfer: listening on unix socket: %w", err), h.lock.Close(), os.Remove(path+".lock"))
	}
	h.unix, h.unixPath = l, path
	return nil
}

// sweep removes what killed hosts left in dir.
func sweep(dir string) {
	socks, _ := filepath.Glob(filepath.Join(dir, "peer-*.sock"))
	for _, path := range socks {
		if lock := tryLock(path + ".lock"); lock != nil {
			if refuses(path) {
				_ = os.Remove(path)
			}
			_ = os.Remove(path + ".lock")
			_ = lock.Close()
		}
	}
	// A host that was killed before it had its socket, or after, left its lock alone.
	locks, _ := filepath.Glob(filepath.Join(dir, "peer-*.sock.lock"))
	for _, path := range locks {
		if fi, err := os.Lstat(path); err != nil || time.Since(fi.ModTime()) < starting {
			continue
		}
		if lock := tryLock(path); lock != nil {
			_ = os.Remove(path)
			_ = lock.Close()
		}
	}
}

// starting is how long a host that opened its lock may take to hold it.
const starting = time.Minute

// refuses reports whether nobody listens at a socket. What cleans temporary
// folders takes old files, the lock of a host that runs among them, but leaves its
// socket.
func refuses(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// tryLock opens and locks a file, or returns nil when another process holds it.
// The lock ends with the process, however it ends.
func tryLock(path string) *os.File {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil
	}
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		_ = f.Close()
		return nil
	}
	return f
}

// Addr returns the address that others dial, with the real port.
func (h *Host) Addr() string { return h.addr }

// Incarnation returns the identity of this host.
func (h *Host) Incarnation() [16]byte { return h.me.Incarnation }

// Handle sets what answers calls of a kind below 0xff00.
func (h *Host) Handle(kind Kind, f func(ctx context.Context, from Caller, body []byte) ([]byte, error)) {
	if kind >= KindNotice {
		panic(fmt.Sprintf("transfer: kind %#x belongs to the package", kind))
	}
	h.handlers[kind] = f
}

// OnNotice sets what is told of notices; the notice is acknowledged when f
// returns.
func (h *Host) OnNotice(f func(from Caller, body []byte)) { h.notice = f }

// OnDisconnect sets what is told when the connection of a caller has ended and
// none of its calls runs any more. f must not wait for the host.
func (h *Host) OnDisconnect(f func(from Caller)) { h.disconnected = f }

// Stats returns the counters.
func (h *Host) Stats() HostStats {
	h.mu.Lock()
	open := len(h.sessions)
	h.mu.Unlock()
	return HostStats{
		Accepted: h.counts.accepted.Load(), Refused: h.counts.refused.Load(),
		BadFrames: h.counts.bad.Load(), Evicted: h.counts.evicted.Load(), Open: open,
	}
}

// Run serves until ctx ends, then closes every connection and agent. Nothing
// runs when it returns.
func (h *Host) Run(ctx context.Context) error {
	h.spawn(func() { h.accept(h.tcp) })
	if h.unix != nil {
		h.spawn(func() { h.accept(h.unix) })
	}
	<-ctx.Done()
	h.mu.Lock()
	h.stopped = true
	h.mu.Unlock()
	close(h.stop)
	h.cfg.Directory.remove(h)
	err := h.tcp.Close()
	if h.unix != nil {
		_ = os.Remove(h.unixPath + ".lock") // the folder may be gone
		err = errors.Join(err, h.unix.Close(), h.lock.Close())
	}
	h.mu.Lock()
	for c := range h.pending {
		_ = c.Close()
	}
	h.mu.Unlock()
	h.wg.Wait()
	return err
}

// spawn runs f in a goroutine that Run waits for. It reports false, and does
// not run f, when the host has stopped.
func (h *Host) spawn(f func()) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return false
	}
	h.wg.Go(f)
	return true
}

// accept is the goroutine of one listener.
func (h *Host) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			select {
			case <-h.stop:
				return
			default:
			}
			if args, ok := h.due(l.Addr().String(), "error", err); ok {
				h.cfg.Log.Warn("accepting a peer", args...)
			}
			select {
			case <-h.stop:
				return
			case <-time.After(10 * time.Millisecond): // out of descriptors
			}
			continue
		}
		h.admit(c)
		if !h.spawn(func() { h.greet(c) }) {
			_ = c.Close()
			return
		}
	}
}

// admit counts c among the connections without proof; the oldest of them makes
// room, so that silent connections do not keep others out.
func (h *Host) admit(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pending[c] = h.counts.next.Add(1)
	if len(h.pending) <= h.limits.Pending {
		return
	}
	var oldest net.Conn
	for p, age := range h.pending {
		if oldest == nil || age < h.pending[oldest] {
			oldest = p
		}
	}
	delete(h.pending, oldest)
	_ = oldest.Close()
	h.counts.evicted.Add(1)
}

// settle takes c from the connections without proof.
func (h *Host) settle(c net.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pending, c)
}

// greet is the goroutine of an incoming connection: it carries out the
// handshake and then serves c according to its purpose.
func (h *Host) greet(c net.Conn) {
	defer func() { _ = c.Close() }()
	hi, accept, err := challenge(c, h.me, time.Now().Add(h.limits.Handshake))
	if err != nil {
		h.refuse(c, err)
		h.settle(c) // until here it makes room for others
		return
	}
	h.settle(c)
	switch hi.Purpose {
	case forCalls:
		h.serveCalls(c, hi, accept)
	case forData, forDescriptors:
		s := h.session(hi.Session, hi.Incarnation)
		if s == nil {
			h.refuse(c, errNoSession)
			return
		}
		detach, err := s.attach(c)
		if err != nil {
			h.refuse(c, err)
			return
		}
		defer detach()
		if _, err := c.Write(accept(hi.Session)); err != nil || c.SetDeadline(time.Time{}) != nil {
			return
		}
		if hi.Purpose == forData {
			h.serveData(&dataConn{conn: c, limit: h.limits.NoProgress}, s)
		} else {
			h.serveDescriptors(c, s)
		}
	}
}

func (h *Host) session(id uint64, incarnation [16]byte) *serverConn {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.sessions[id]
	if s == nil || s.caller.Incarnation != incarnation {
		return nil
	}
	return s
}

// network splits an address into its network and the rest: unix:PATH or
// HOST:PORT.
func network(addr string) (string, string) {
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "unix", path
	}
	return "tcp", addr
}
