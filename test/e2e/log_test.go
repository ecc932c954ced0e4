package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"testing"

	"tandem/test/cluster"
)

// The reader of a log ends, as where a program behind a pipe crashes. An engine
// and a router serve on, and count what nobody reads.
func TestLogReaderEnds(t *testing.T) {
	engine := unread(t, append([]string{"serve", "--port", "0"}, sim...)...)
	cluster.Eventually(t, "the engine is ready", func() bool { return status(engine.URL+"/health/ready") == http.StatusOK })
	g := &rig{one: engine, r: newRand()}
	prompt := g.prompt(20)
	want := g.want(t, prompt, 5)
	cluster.Eventually(t, "lost lines are counted", func() bool { return engine.Metric(t, "tandem_log_lines_lost_total") > 0 })
	if got := g.want(t, prompt, 5); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	router := unread(t, "route", "--port", "0", "--prefill", engine.URL, "--decode", "http://127.0.0.1:1")
	for range 3 { // each request is a line
		if _, err := ask(router.URL, request(prompt, false, 5)); err == nil {
			t.Error("answered without a pair of engines")
		}
	}
	cluster.Eventually(t, "the router is alive", func() bool { return status(router.URL+"/version") == http.StatusOK })
}

// status returns the status of a GET, 0 where there is no answer.
func status(url string) int {
	resp, err := http.Get(url)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// unread runs the program with a log that nobody reads any more.
func unread(t *testing.T, args ...string) *cluster.Proc {
	t.Helper()
	said, say := pipe(t)
	log, write := pipe(t)
	cmd := exec.Command(cluster.Binary(t), append(args, "--announce-fd", "3")...)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{say}, write
	log.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	say.Close()
	write.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		said.Close()
	})
	var a struct{ URL string }
	if err := json.NewDecoder(said).Decode(&a); err != nil {
		t.Fatalf("it did not say where it listens: %v", err)
	}
	return &cluster.Proc{Name: args[0], URL: a.URL}
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}
