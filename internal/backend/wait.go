package backend

import (
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// A wait bounds what a leg waits for, one thing after the other. It cuts the leg
// itself, above whatever carries it, so that no carrier can hold a leg for ever.
type wait struct {
	cut   func()
	timer *time.Timer
	limit time.Duration
	over  atomic.Bool
}

func newWait(cut func()) *wait {
	w := &wait{cut: cut}
	w.timer = time.AfterFunc(time.Hour, func() {
		w.over.Store(true)
		cut()
	})
	w.timer.Stop()
	return w
}

// begin starts a wait of at most limit; 0 is no limit.
func (w *wait) begin(limit time.Duration) {
	if w.limit = limit; limit > 0 {
		w.timer.Reset(limit)
	}
}

// end ends the wait and returns err, or what it means when the limit had passed.
func (w *wait) end(err error) error {
	w.timer.Stop()
	if w.over.Load() {
		return fmt.Errorf("silent for %v", w.limit)
	}
	return err
}

// leg sends the request of a leg and waits for the status line. The leg ends when
// the answer's body is closed, or with an error here; cut ends the request's
// context.
func (b *Backend) leg(client *http.Client, req *http.Request, cut func()) (*http.Response, error) {
	b.legs.Add(1)
	w := newWait(cut)
	w.begin(b.limits.Header)
	resp, err := client.Do(req)
	if err = w.end(err); err != nil {
		if resp != nil {
			_ = resp.Body.Close() // too late
		}
		cut()
		b.legs.Add(-1)
		return nil, err
	}
	resp.Body = &legBody{ReadCloser: resp.Body, legs: &b.legs, wait: w, silence: b.limits.Silence}
	return resp, nil
}

// A legBody is the body of a leg's answer. It bounds each wait for bytes, and
// counts its leg out when it is closed.
type legBody struct {
	io.ReadCloser

	legs    *atomic.Int64
	wait    *wait
	silence time.Duration
	shut    atomic.Bool
}

// Read implements io.Reader.
func (l *legBody) Read(p []byte) (int, error) {
	l.wait.begin(l.silence)
	n, err := l.ReadCloser.Read(p)
	if late := l.wait.end(err); n == 0 || err != nil {
		err = late
	}
	return n, err
}

// Close implements io.Closer.
func (l *legBody) Close() error {
	if !l.shut.Swap(true) {
		l.legs.Add(-1)
	}
	l.wait.timer.Stop()
	defer l.wait.cut()
	return l.ReadCloser.Close()
}

// finishing bounds how long Finish reads.
const finishing = 100 * time.Millisecond

// Finish closes the body of an answer whose end is known. What little is left is
// read for a moment, so that the connection can serve again.
func Finish(body io.ReadCloser) {
	if l, ok := body.(*legBody); ok {
		defer time.AfterFunc(finishing, l.wait.cut).Stop()
	}
	drop(body)
}
