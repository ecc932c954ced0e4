package router

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"tandem/internal/openai"
)

// A client that closes its own half of the connection counts as gone. It may read
// on, and never meets what looks like an answer.
func TestAClientThatHangsUpHalfIsToldSo(t *testing.T) {
	for _, body := range []string{`{"prompt":"a"}`, `{"prompt":"a","stream":true}`, `{"prompt":["a","b"]}`, `{"prompt":["a","b"],"stream":true}`} {
		log, logger := logged()
		_, d, _, url := pair(t, Config{Log: logger})
		stream := strings.Contains(body, "stream")
		d.set(hooks{decode: func(w http.ResponseWriter, q *http.Request, b []byte) bool {
			if stream {
				return endless(w, q, b)
			}
			<-q.Context().Done()
			return true
		}})
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		in := bufio.NewReader(conn)
		d.await(t, "decode")
		if stream { // begun
			if _, err := in.Peek(1); err != nil {
				t.Fatal(err)
			}
		}
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(body, err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(body, err)
		}
		told := resp.StatusCode == openai.StatusClientGone && bytes.HasPrefix(text, []byte(`{"error":`))
		if stream {
			told = bytes.Contains(text, []byte("data: {\"error\":")) && bytes.HasSuffix(text, []byte("data: [DONE]\n\n"))
		}
		if !told {
			t.Errorf("%s: %d %s", body, resp.StatusCode, text)
		}
		if l := requests(t, log, 1); l[0]["outcome"] != clientGone || l[0]["status"] != 499.0 {
			t.Errorf("%s: %v", body, l[0])
		}
	}
}

// A decode engine that dies in the middle of an event has interrupted the stream,
// of one prompt or of a list; nobody blames what it sent. A whole end mark is the
// end, though its empty line is missing.
func TestStreamThatBreaksWithinAnEvent(t *testing.T) {
	const event = "data: {\"id\":\"a\",\"created\":1,\"choices\":[{\"index\":0,\"text\":\"t\"}]}\n\n"
	for _, prompt := range []string{`"a"`, `["a","b"]`} {
		for last, want := range map[string]string{`data: {"id":"a","choi`: interrupted, "data: [DON": interrupted, "data: [DONE]": "ok"} {
			log, logger := logged()
			_, d, _, url := pair(t, Config{Log: logger})
			d.set(hooks{decode: func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				w.Header().Set("Content-Type", "text/event-stream")
				fmt.Fprint(w, event)
				_ = http.NewResponseController(w).Flush()
				fmt.Fprint(w, last)
				return true
			}})
			_, _, body := post(t, url+"/v1/completions", `{"prompt":`+prompt+`,"stream":true}`)
			if l := requests(t, log, 1); l[0]["outcome"] != want || strings.Contains(body, "\"error\"") != (want == interrupted) {
				t.Errorf("%s, %s: %v\n%s", prompt, last, l[0]["outcome"], body)
			}
		}
	}
}
