package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"tandem/internal/openai/wiretest"
)

// A watch is a log that asks the wire at each line about a request.
type watch struct {
	wire  *wiretest.Wire
	lines chan bool // whether the client had all of its answer
}

func (w *watch) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(`"msg":"request"`)) {
		w.lines <- w.wire.Whole()
	}
	return len(p), nil
}

// Who has the whole answer, or a stream's end mark, finds the request counted and
// logged.
func TestNumbersComeBeforeTheEndOfAnAnswer(t *testing.T) {
	see := &watch{lines: make(chan bool, 10)}
	counted := make(chan bool, 10)
	_, d, r, _ := pair(t, Config{
		Log:     slog.New(slog.NewJSONHandler(see, nil)),
		Metrics: Metrics{Request: func(string, string, int, float64) { counted <- see.wire.Whole() }},
	})
	see.wire = wiretest.Serve(t, r.Handler())
	const event = "data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n"
	long := strings.Repeat("long ", 20_000)
	for what, c := range map[string]struct {
		decode func(w http.ResponseWriter, body string)
	}{
		"an answer": {},
		"a long answer": {decode: func(w http.ResponseWriter, body string) {
			out := fmt.Sprintf(`{"id":"a","choices":[{"index":0,"text":%q}]}`, long)
			if strings.Contains(body, `"stream":true`) {
				out = "data: " + out + "\n\ndata: [DONE]\n\n"
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(out)))
			_, _ = io.WriteString(w, out)
		}},
		"an error": {decode: func(w http.ResponseWriter, _ string) {
			w.WriteHeader(http.StatusBadRequest)
			_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"message": long, "code": 400}})
		}},
		"an error within": {decode: func(w http.ResponseWriter, body string) {
			if !strings.Contains(body, `"stream":true`) {
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			_, _ = io.WriteString(w, event+"data: {\"error\":{\"message\":\"boom\",\"code\":507}}\n\ndata: [DONE]\n\n")
		}},
		"a broken answer": {decode: func(w http.ResponseWriter, _ string) {
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}},
	} {
		for _, body := range []string{`{"prompt":"a"}`, `{"prompt":"a","stream":true}`, `{"prompt":["a","b"]}`, `{"prompt":["a","b"],"stream":true}`, `{"prompt":`} {
			d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
				if c.decode != nil {
					c.decode(w, string(body))
				}
				return c.decode != nil
			}})
			see.wire.Clear()
			post(t, see.wire.URL+"/v1/completions", body)
			if !see.wire.Whole() {
				t.Fatalf("%s to %s: the answer was not seen", what, body)
			}
			if late, logged := <-counted, <-see.lines; late || logged {
				t.Errorf("%s to %s: the client had it all before it was counted (%t) or logged (%t)", what, body, late, logged)
			}
		}
	}
}
