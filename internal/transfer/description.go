package transfer

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Geometry is the shape of a region: Tiles tiles of TileBytes bytes each, one
// after the other.
type Geometry struct {
	Tiles     int
	TileBytes int
}

func (g Geometry) check() error {
	if g.Tiles <= 0 || g.Tiles > 1<<31-1 || g.TileBytes <= 0 || g.TileBytes > maxTile {
		return &BoundsError{What: fmt.Sprintf("%d tiles of %d bytes", g.Tiles, g.TileBytes)}
	}
	return nil
}

func (g Geometry) bytes() int { return g.Tiles * g.TileBytes }

const (
	descriptionMagic   = "TDMR"
	descriptionVersion = 1
)

// A description is what an agent publishes about its region.
type description struct {
	Incarnation [16]byte
	Rank        uint16
	Geometry    Geometry
	Epoch       uint64
	Released    bool
	Nonce       [16]byte // also on the control page
	Unix        string   // path of the unix socket, or "" when it offers no descriptors
}

// encode appends a checksum to the fields: docs/protocol.md.
func (d *description) encode() []byte {
	b := append(make([]byte, 0, 128+len(d.Unix)), descriptionMagic...)
	b = append(b, descriptionVersion)
	b = append(b, d.Incarnation[:]...)
	b = binary.LittleEndian.AppendUint16(b, d.Rank)
	b = binary.LittleEndian.AppendUint32(b, uint32(d.Geometry.Tiles))
	b = binary.LittleEndian.AppendUint32(b, uint32(d.Geometry.TileBytes))
	b = binary.LittleEndian.AppendUint64(b, controlWord(d.Epoch, d.Released))
	b = append(b, d.Nonce[:]...)
	b = appendText(b, d.Unix, maxUnixPath)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
}

func decodeDescription(b []byte) (*description, error) {
	if len(b) < 4 || len(b) > maxDescribe {
		return nil, &ProtocolError{What: fmt.Sprintf("description of %d bytes", len(b))}
	}
	body, sum := b[:len(b)-4], binary.LittleEndian.Uint32(b[len(b)-4:])
	if crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)) != sum {
		return nil, &ProtocolError{What: "description with a wrong checksum"}
	}
	r := reader{b: body}
	if string(r.take(4)) != descriptionMagic {
		return nil, &ProtocolError{What: "not a description"}
	}
	if v := r.u8(); v != descriptionVersion {
		return nil, &ProtocolError{What: fmt.Sprintf("description of version %d, want %d", v, descriptionVersion)}
	}
	var d description
	copy(d.Incarnation[:], r.take(16))
	d.Rank = r.u16()
	d.Geometry = Geometry{Tiles: int(r.u32()), TileBytes: int(r.u32())}
	word := r.u64()
	d.Epoch, d.Released = word>>1, word&1 == 1
	copy(d.Nonce[:], r.take(16))
	d.Unix = r.text(maxUnixPath)
	if !r.end() {
		return nil, &ProtocolError{What: "malformed description"}
	}
	if err := d.Geometry.check(); err != nil {
		return nil, err
	}
	return &d, nil
}

func controlWord(epoch uint64, released bool) uint64 {
	if released {
		return epoch<<1 | 1
	}
	return epoch << 1
}
