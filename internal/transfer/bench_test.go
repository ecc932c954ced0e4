//go:build !invariants

package transfer

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
)

// rawStream serves what a TCP stream can do at best: for each connection it
// reads a count and tile numbers and answers with the tiles by writev.
func rawStream(mem []byte, g Geometry) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for {
					var n [4]byte
					if _, err := io.ReadFull(c, n[:]); err != nil {
						return
					}
					list := make([]byte, 4*binary.LittleEndian.Uint32(n[:]))
					if _, err := io.ReadFull(c, list); err != nil {
						return
					}
					var b net.Buffers
					for ; len(list) > 0; list = list[4:] {
						b = append(b, mem[int(binary.LittleEndian.Uint32(list))*g.TileBytes:][:g.TileBytes])
					}
					if _, err := b.WriteTo(c); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), nil
}

// BenchmarkRead moves 90 MB in tiles of 360 KiB from another process, in random
// order, through Plan.Read, and reports each rate as a ratio to copy() or to a
// raw writev stream of the same pieces in the same run.
func BenchmarkRead(b *testing.B) {
	const moved = 250
	g := Geometry{Tiles: 728, TileBytes: 360 << 10}
	local, remote := lists(moved, g.Tiles)
	bytes := float64(moved * g.TileBytes)
	for b.Loop() {
		own := make([]byte, g.bytes())
		fill(own, 1)
		one := startProcess(b, g, PathMemfd, 1)
		two := startProcess(b, g, PathMemfd, 2)
		tcp := startProcess(b, g, PathTCP, 1)
		fill(one.arrived, 2)
		fill(two.arrived, 2)
		fill(tcp.arrived, 2)
		raw, err := net.Dial("tcp", tcp.raw)
		if err != nil {
			b.Fatal(err)
		}
		var post []time.Duration
		read := func(p *process, check func(i int) error) func() {
			pl := p.plan(b)
			return func() {
				start := time.Now()
				r := pl.Read(b.Context(), ReadRequest{Epoch: 1, Local: local, Remote: remote, Check: check})
				post = append(post, time.Since(start))
				if err := finish(b, r); err != nil {
					b.Fatal(err)
				}
			}
		}
		var sums [moved]uint64
		sum := func(p *process) func(i int) error {
			return func(i int) error {
				sums[i] = xxh3.Hash(p.arrived[int(local[i])*g.TileBytes:][:g.TileBytes])
				return nil
			}
		}
		plain := func(from, to int) {
			for i := from; i < to; i++ {
				copy(one.arrived[int(local[i])*g.TileBytes:][:g.TileBytes], own[int(remote[i])*g.TileBytes:][:g.TileBytes])
			}
		}
		cases := []struct {
			name string
			f    func()
		}{
			{"copy 1", func() { plain(0, moved) }},
			{"copy 2", func() {
				var wg sync.WaitGroup
				wg.Go(func() { plain(0, moved/2) })
				wg.Go(func() { plain(moved/2, moved) })
				wg.Wait()
			}},
			{"memfd 1", read(one, nil)},
			{"memfd 2", read(two, nil)},
			{"memfd 1 sums", read(one, sum(one))},
			{"memfd 2 sums", read(two, sum(two))},
			{"raw stream", func() {
				list := binary.LittleEndian.AppendUint32(nil, moved)
				for _, t := range remote {
					list = binary.LittleEndian.AppendUint32(list, uint32(t))
				}
				if _, err := raw.Write(list); err != nil {
					b.Fatal(err)
				}
				for _, t := range local {
					if _, err := io.ReadFull(raw, tcp.arrived[int(t)*g.TileBytes:][:g.TileBytes]); err != nil {
						b.Fatal(err)
					}
				}
			}},
			{"tcp", read(tcp, nil)},
			{"tcp sums", read(tcp, sum(tcp))},
		}
		const rounds = 7
		took := make([][]time.Duration, len(cases))
		for round := range rounds + 1 {
			for _, i := range rand.Perm(len(cases)) {
				start := time.Now()
				cases[i].f()
				if round > 0 {
					took[i] = append(took[i], time.Since(start))
				}
			}
		}
		rate := map[string]float64{}
		for i, c := range cases {
			slices.Sort(took[i])
			rate[c.name] = bytes / took[i][rounds/2].Seconds() / 1e9
		}
		slices.Sort(post)
		raw.Close()
		var out strings.Builder
		for _, c := range cases {
			fmt.Fprintf(&out, "%-13s %5.2f GB/s\n", c.name, rate[c.name])
		}
		for _, q := range [][2]string{
			{"memfd 1", "copy 1"}, {"memfd 2", "copy 1"}, {"memfd 2", "copy 2"}, {"memfd 1 sums", "copy 1"},
			{"memfd 2 sums", "copy 1"}, {"memfd 2 sums", "copy 2"}, {"tcp", "raw stream"}, {"tcp sums", "raw stream"},
		} {
			fmt.Fprintf(&out, "%-13s is %.2f of %s\n", q[0], rate[q[0]]/rate[q[1]], q[1])
		}
		b.Logf("medians of %d\n%spost p50 %v, max %v", rounds, out.String(), post[len(post)/2], post[len(post)-1])
		b.ReportMetric(rate["memfd 1"]/rate["copy 1"], "memfd1/copy1")
		b.ReportMetric(rate["memfd 2"]/rate["copy 1"], "memfd2/copy1")
		b.ReportMetric(rate["memfd 1 sums"]/rate["copy 1"], "sums1/copy1")
		b.ReportMetric(rate["tcp"]/rate["raw stream"], "tcp/raw")
		b.ReportMetric(float64(post[len(post)/2]), "post-ns")
	}
}
