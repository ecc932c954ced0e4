package transfer

import (
	"fmt"
)

// Strides says which bytes of a tile are moved: Pieces pieces of Len bytes,
// piece p from RemoteOff+p*RemoteStep of the remote tile to
// LocalOff+p*LocalStep of the local one. Tiles of the same layout are one piece.
type Strides struct {
	Pieces                int
	LocalOff, LocalStep   int
	RemoteOff, RemoteStep int
	Len                   int
}

// compact checks s against the tiles of both sides and joins pieces that follow
// each other on both.
func (s Strides) compact(local, remote int) (Strides, error) {
	if s.Pieces <= 0 || s.Pieces > maxPieces || s.Len <= 0 || s.Len > maxTile {
		return s, &BoundsError{What: fmt.Sprintf("%d pieces of %d bytes", s.Pieces, s.Len)}
	}
	side := func(name string, off, step, size int) error {
		if off < 0 || off > maxTile || step < 0 || step > maxTile || (s.Pieces > 1 && step < s.Len) ||
			off+(s.Pieces-1)*step+s.Len > size {
			return &BoundsError{What: fmt.Sprintf("%d pieces of %d bytes from %d by %d in a %s tile of %d bytes",
				s.Pieces, s.Len, off, step, name, size)}
		}
		return nil
	}
	if err := side("local", s.LocalOff, s.LocalStep, local); err != nil {
		return s, err
	}
	if err := side("remote", s.RemoteOff, s.RemoteStep, remote); err != nil {
		return s, err
	}
	if s.Pieces > 1 && s.LocalStep == s.Len && s.RemoteStep == s.Len {
		s.Len *= s.Pieces
		s.Pieces = 1
	}
	return s, nil
}

// bytes returns the bytes moved for each tile.
func (s Strides) bytes() int { return s.Pieces * s.Len }

// A Plan binds a local and a remote region and the pieces of their tiles. It is
// immutable and survives updates of the remote.
type Plan struct {
	agent   *Agent
	local   *Region
	remote  *Remote
	strides Strides
}

// Plan checks s against both regions and binds them.
func (a *Agent) Plan(local *Region, remote *Remote, s Strides) (*Plan, error) {
	s, err := s.compact(local.geometry.TileBytes, remote.geometry.TileBytes)
	if err != nil {
		return nil, fmt.Errorf("transfer: planning reads of rank %d from rank %d of %s: %w",
			a.rank, remote.rank, remote.peer.addr, err)
	}
	return &Plan{agent: a, local: local, remote: remote, strides: s}, nil
}
