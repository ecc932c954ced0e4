package router

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"tandem/internal/backend"
)

// silentAfter answers with the beginning of a body and then nothing, until its
// client leaves; cut ends the connection instead.
func silentAfter(begin string, cut bool) hooks {
	answer := func(w http.ResponseWriter, q *http.Request, _ []byte) bool {
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, begin)
		_ = http.NewResponseController(w).Flush()
		if !cut {
			<-q.Context().Done()
		}
		panic(http.ErrAbortHandler)
	}
	return hooks{prefill: answer, decode: answer}
}

// A plain answer that breaks off, or ends in the middle for ever, is a failed
// leg: the client gets an error with words, or another engine's answer, and never
// a part. A stream that falls silent ends with an error event.
func TestAnswersThatNeverEnd(t *testing.T) {
	limits := backend.Limits{Silence: 500 * time.Millisecond}
	const half = `{"id":"d","choices":[{"index":0,"te`
	for _, cut := range []bool{true, false} {
		t.Run(fmt.Sprintf("cut %v", cut), func(t *testing.T) {
			counted := make(chan int, 10)
			p, d, _, url := pair(t, Config{Backend: limits, Metrics: Metrics{Request: func(_, _ string, status int, _ float64) { counted <- status }}})
			d.set(silentAfter(half, cut))
			status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`)
			if status != http.StatusBadGateway || !strings.Contains(body, "backend_unavailable") || strings.Contains(body, half) {
				t.Errorf("plain: %d %s", status, body)
			}
			p.await(t, "release")
			const event = "data: {\"id\":\"d\",\"choices\":[{\"index\":0,\"text\":\"t0\"}]}\n\n"
			d.set(silentAfter(event, cut))
			status, _, body = post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`)
			if status != http.StatusOK || !strings.HasPrefix(body, event) || strings.Count(body, `"error"`) != 1 || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Errorf("stream: %d %s", status, body)
			}
			if plain, stream := <-counted, <-counted; plain != http.StatusBadGateway || stream != http.StatusBadGateway {
				t.Errorf("counted as %d and %d, want 502: both are failures", plain, stream)
			}
			// Half an event is nothing that a client could read.
			d.set(silentAfter(event+half, cut))
			status, _, body = post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`)
			if status != http.StatusOK || !strings.HasPrefix(body, event+"data: {\"error\"") || !strings.HasSuffix(body, "data: [DONE]\n\n") {
				t.Errorf("half an event: %d %s", status, body)
			}
			d.set(silentAfter("data: "+half, cut))
			if status, _, body = post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`); status != http.StatusBadGateway || strings.Contains(body, half) {
				t.Errorf("half an event and nothing else: %d %s", status, body)
			}
			d.set(hooks{})
			p.set(silentAfter(half, cut))
			if status, _, body = post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusBadGateway || !strings.Contains(body, "backend_unavailable") {
				t.Errorf("prefill: %d %s", status, body)
			}

			p, d, other := newStandIn(t, "P"), newStandIn(t, "D"), newStandIn(t, "D2")
			_, url = front(t, Config{Backend: limits, Retries: 1}, []*standIn{p}, []*standIn{d, other})
			d.set(silentAfter(half, cut))
			for range 4 {
				if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a"}`); status != http.StatusOK || !strings.Contains(body, "echo of") {
					t.Errorf("with another D: %d %s", status, body)
				}
			}
			if b, _ := d.got(); len(b) == 0 {
				t.Error("the D that never ends was not asked")
			}
		})
	}
}

// Behind its end mark a stream is whole, whatever becomes of the engine: no event
// follows.
func TestEndMarkEndsAStream(t *testing.T) {
	const stream = "data: {\"choices\":[{\"index\":0,\"text\":\"t0\"}]}\n\ndata: [DONE]\n\n"
	for _, cut := range []bool{true, false} {
		_, d, _, url := pair(t, Config{Backend: backend.Limits{Silence: 500 * time.Millisecond}})
		d.set(silentAfter(stream, cut))
		if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`); status != http.StatusOK || body != stream {
			t.Errorf("cut %v: %d %q", cut, status, body)
		}
	}
}

// The end mark counts without its empty line, and events may end with \r\n.
func TestEventsOfOtherEngines(t *testing.T) {
	for _, stream := range []string{
		"data: {}\n\ndata: [DONE]\n", "data: {}\n\ndata: [DONE]", "data: {}\r\n\r\ndata: [DONE]\r\n\r\n", ": ping\n\ndata: {}\n\ndata: [DONE]\n\n",
	} {
		_, d, _, url := pair(t, Config{})
		d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
			for _, c := range []byte(stream) { // in the smallest pieces
				_, _ = w.Write([]byte{c})
				_ = http.NewResponseController(w).Flush()
			}
			return true
		}})
		if status, _, body := post(t, url+"/v1/completions", `{"prompt":"a","stream":true}`); status != http.StatusOK || body != stream {
			t.Errorf("%q: %d %q", stream, status, body)
		}
	}
	for text, want := range map[string]int{
		"": 0, "\n": 0, "a\n": 0, "a\n\n": 3, "a\n\nb\n": 3, "a\n\nb\n\nc": 6, "a\r\n\r\nb": 5, "\n\n": 2,
	} {
		if got := wholeEvents([]byte(text)); got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
}
