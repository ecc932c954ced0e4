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
