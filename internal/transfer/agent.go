package transfer

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
)

// The paths of data.
const (
	PathMem   = "mem"   // both agents are in one process
	PathMemfd = "memfd" // the owner's memory file is mapped here
	PathTCP   = "tcp"   // the owner streams
)

// AgentConfig bounds an agent and says who may read from it.
type AgentConfig struct {
	// Workers is the number of goroutines that copy from mapped memory for all
	// reads of this agent together. 0: 2.
	Workers int

	// Authorize says whether a peer may read these tiles of the region under an
	// epoch and a lease. It is asked once for each read, whatever its path, after
	// epoch and bounds were checked, from many goroutines. Nil: everything is
	// refused.
	Authorize func(from Caller, epoch uint64, lease [16]byte, tiles []int32) error

	// Paths are the paths that Join may choose. Nil: all.
	Paths []string
}

// An Agent is the transfer end of one rank. It ends with its Host.
type Agent struct {
	host   *Host
	rank   uint16
	cfg    AgentConfig
	region atomic.Pointer[Region]
	pool   copiers
}

// NewAgent adds the agent of a rank to h. There is one for each rank; a second
// one is a bug of the caller and panics.
func (h *Host) NewAgent(rank int, cfg AgentConfig) *Agent {
	if rank < 0 || rank > 1<<16-1 {
		panic(fmt.Sprintf("transfer: agent of rank %d", rank))
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 2
	}
	a := &Agent{host: h, rank: uint16(rank), cfg: cfg}
	a.pool.agent = a
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.agents[a.rank] != nil {
		panic(fmt.Sprintf("transfer: second agent of rank %d", rank))
	}
	h.agents[a.rank] = a
	return a
}

func (h *Host) agent(rank uint16) *Agent {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.agents[rank]
}

// Describe returns the description of a's region for the Join of others: its
// geometry, epoch and where its memory can be had, with a version and a
// checksum, under 1 KiB. It is nil while a has no region.
func (a *Agent) Describe() []byte {
	r := a.region.Load()
	if r == nil {
		return nil
	}
	d := description{Incarnation: a.host.me.Incarnation, Rank: a.rank, Geometry: r.geometry, Nonce: r.nonce}
	r.mu.Lock()
	d.Epoch, d.Released = r.epoch, r.released
	if r.mem.File != nil || r.released {
		d.Unix = a.host.unixPath
	}
	r.mu.Unlock()
	return d.encode()
}

// A readRequest asks to read tiles; over tcp it also says which bytes of them:
//
//	u16 rank | u64 epoch | [16] lease | u32 pieces | u32 offset | u32 step | u32 length | u32 tiles | u32 tile ...
type readRequest struct {
	Rank   uint16
	Epoch  uint64
	Lease  [16]byte
	Pieces int
	Off    int
	Step   int
	Len    int
	Tiles  []int32
}

func (q *readRequest) encode() []byte {
	b := make([]byte, 0, 46+4*len(q.Tiles))
	b = binary.LittleEndian.AppendUint16(b, q.Rank)
	b = binary.LittleEndian.AppendUint64(b, q.Epoch)
	b = append(b, q.Lease[:]...)
	for _, v := range []int{q.Pieces, q.Off, q.Step, q.Len, len(q.Tiles)} {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	for _, t := range q.Tiles {
		b = binary.LittleEndian.AppendUint32(b, uint32(t))
	}
	return b
}

func decodeReadRequest(b []byte) (*readRequest, error) {
	r := reader{b: b}
	q := &readRequest{Rank: r.u16(), Epoch: r.u64()}
	copy(q.Lease[:], r.take(16))
	q.Pieces, q.Off, q.Step, q.Len = int(r.u32()), int(r.u32()), int(r.u32()), int(r.u32())
	n := int(r.u32())
	if r.bad || n > MaxTiles || len(r.b) != 4*n {
		return nil, &ProtocolError{What: "malformed read request"}
	}
	q.Tiles = make([]int32, n)
	for i := range q.Tiles {
		q.Tiles[i] = int32(binary.LittleEndian.Uint32(r.b[4*i:]))
	}
	return q, nil
}

// strides returns the pieces of q as those of a plan that reads a tile of size
// bytes into an equal one.
func (q *readRequest) strides(size int) (Strides, error) {
	s := Strides{
		Pieces: q.Pieces, Len: q.Len,
		LocalOff: q.Off, LocalStep: q.Step, RemoteOff: q.Off, RemoteStep: q.Step,
	}
	return s.compact(size, size)
}

// enterRead validates a read from outside: region, epoch, bounds, pieces,
// lease. On success the region is entered and the caller leaves it.
func (h *Host) enterRead(from Caller, q *readRequest) (*Region, []byte, Strides, error) {
	var r *Region
	a := h.agent(q.Rank)
	if a != nil {
		r = a.region.Load()
	}
	if r == nil {
		return nil, nil, Strides{}, &RefusedError{Code: RefusedRank, Text: fmt.Sprintf("rank %d has no region", q.Rank)}
	}
	mem, epoch, err := r.enter()
	if err != nil {
		return nil, nil, Strides{}, err
	}
	s, err := a.validate(from, r.geometry, epoch, q)
	if err != nil {
		r.leave()
		return nil, nil, Strides{}, err
	}
	return r, mem.Bytes, s, nil
}

func (a *Agent) validate(from Caller, g Geometry, epoch uint64, q *readRequest) (Strides, error) {
	if q.Epoch != epoch {
		return Strides{}, &EpochError{Have: epoch, Want: q.Epoch}
	}
	if err := checkTiles(g, q.Tiles); err != nil {
		return Strides{}, err
	}
	s, err := q.strides(g.TileBytes)
	if err != nil {
		return Strides{}, err
	}
	if a.cfg.Authorize == nil {
		return Strides{}, &RefusedError{Code: RefusedFault, Text: "this agent lets nobody read"}
	}
	return s, a.cfg.Authorize(from, q.Epoch, q.Lease, q.Tiles)
}

// begin answers whether a reader that maps the region may read.
func (h *Host) begin(from Caller, body []byte) error {
	q, err := decodeReadRequest(body)
	if err != nil {
		return err
	}
	r, _, _, err := h.enterRead(from, q)
	if err == nil {
		r.leave()
	}
	return err
}
