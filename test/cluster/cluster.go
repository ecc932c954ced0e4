// Package cluster starts Tandem's processes for tests: the program is built
// once, every process gets free ports, its log is kept and shown when the test
// fails, and all end with the test.
package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tandem/internal/bystander/logtest"
)

// guard ends a wait for what never comes. It is far beyond what anything takes,
// on whatever machine.
const guard = time.Minute

// client asks processes, of which one may hang.
var client = &http.Client{Timeout: guard}

// A Proc is one process.
type Proc struct {
	Name string
	URL  string
	PID  int

	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}
	log   logtest.Book
}

var build = sync.OnceValues(func() (string, error) {
	_, file, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(file), "..", "..")
	dir, err := os.MkdirTemp("", "tandem-test-")
	if err != nil {
		return "", err
	}
	if err := endsWithUs(dir); err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "tandem")
	cmd := exec.Command("go", "build", "-o", bin, "./cmd/tandem")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building tandem: %w\n%s", err, out)
	}
	return bin, nil
})

// endsWithUs has dir removed when this process ends, however it ends: a shell waits
// for the end of a pipe whose other side is never closed here.
func endsWithUs(dir string) error {
	var pipe [2]int
	if err := syscall.Pipe2(pipe[:], syscall.O_CLOEXEC); err != nil {
		return err
	}
	r := os.NewFile(uintptr(pipe[0]), "pipe")
	sh := exec.Command("sh", "-c", `read -r _; rm -rf "$1"`, "sh", dir)
	sh.Stdin, sh.SysProcAttr = r, &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is not for it
	return errors.Join(sh.Start(), r.Close())
}

// Binary returns the path of the program under test.
func Binary(t testing.TB) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// Loopback returns an IP address of this machine that no other process uses, for
// listeners that come back at their ports: what else runs here would take them.
func Loopback() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 64+pid>>16&63, pid>>8&255, pid&255)
}

// Model returns the path of the default model. A test that needs it fails where
// it is missing: a golden test that does not run proves nothing.
func Model(t testing.TB) string {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "tandem", "SmolLM2-135M-Instruct.Q4_1.gguf")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v; fetch the default model with `make model`", err)
	}
	return path
}

// Token writes a cluster token and returns its path.
func Token(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(hex.EncodeToString([]byte(t.Name() + "-0123456789abcdef0123456789abcdef")[:32])+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Start runs `tandem args...` and returns when it says where it listens. It
// ends with the test.
func Start(t testing.TB, name string, args ...string) *Proc {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p := &Proc{Name: name, done: make(chan struct{})}
	p.cmd = exec.Command(Binary(t), append(args, "--announce-fd", "3", "--supervised")...)
	p.cmd.ExtraFiles = []*os.File{w}
	p.stdin, err = p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p.PID = p.cmd.Process.Pid
	w.Close()
	go func() {
		_ = p.cmd.Wait() // the log and the test tell
		close(p.done)
	}()
	t.Cleanup(func() {
		began := time.Now()
		if !p.Stop() {
			t.Errorf("%s did not end by itself", name)
		}
		took := time.Since(began)
		if took > guard/6 {
			t.Logf("%s took %v to end", name, took)
		}
		if t.Failed() || took > guard/6 {
			t.Logf("log of %s:\n%s", name, p.Log())
		}
	})
	var a struct{ URL string }
	if err := json.NewDecoder(r).Decode(&a); err != nil {
		<-p.done
		t.Fatalf("%s did not say where it listens: %v\n%s", name, err, p.Log())
	}
	p.URL = a.URL
	return p
}

// Log returns what the process has printed.
func (p *Proc) Log() string { return p.log.String() }

// Stop ends the process as `tandem up` does, waits for it and reports whether it
// did end. One that did not is killed, and its log ends with its goroutines.
func (p *Proc) Stop() (ended bool) {
	_ = p.stdin.Close()
	return p.ends()
}

// ends waits for the end of a process that is to end by itself.
func (p *Proc) ends() bool {
	select {
	case <-p.done:
		return true
	case <-time.After(guard):
	}
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	select {
	case <-p.done:
	case <-time.After(guard / 10):
		p.Kill()
	}
	return false
}

// Kill ends the process at once. What comes back at its address is dialled anew.
func (p *Proc) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
	http.DefaultClient.CloseIdleConnections()
}

// Signal sends a signal.
func (p *Proc) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// Done is closed when the process has ended.
func (p *Proc) Done() <-chan struct{} { return p.done }

// ExitCode waits for the end of the process and returns its status, -1 after a
// signal. One that does not end is killed.
func (p *Proc) ExitCode() int {
	p.ends()
	return p.cmd.ProcessState.ExitCode()
}

// Ready returns when the process can serve.
func (p *Proc) Ready(t testing.TB) *Proc {
	t.Helper()
	Eventually(t, p.Name+" is ready", func() bool {
		select {
		case <-p.done:
			t.Fatalf("%s ended:\n%s", p.Name, p.Log())
		default:
		}
		resp, err := client.Get(p.URL + "/health/ready")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return p
}

// Eventually returns when cond holds, which it must within a generous bound.
func Eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(guard)
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatalf("not within %v: %s", guard, what)
		}
	}
}

// Get returns the body of a GET that must succeed.
func (p *Proc) Get(t testing.TB, path string) []byte {
	t.Helper()
	resp, err := client.Get(p.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("%s%s: %d %s", p.URL, path, resp.StatusCode, body)
	}
	return body
}

// Metric returns the sum of the samples of a metric whose labels contain all of
// with, written like `source="x"`.
func (p *Proc) Metric(t testing.TB, name string, with ...string) float64 {
	t.Helper()
	sum := 0.0
	s := bufio.NewScanner(bytes.NewReader(p.Get(t, "/metrics")))
	s.Buffer(nil, 1<<20)
next:
	for s.Scan() {
		line := s.Text()
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		for _, w := range with {
			if !strings.Contains(rest, w) {
				continue next
			}
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("metric %q: %v", line, err)
		}
		sum += v
	}
	return sum
}

// An Info is what an engine says of its blocks and leases.
type Info struct {
	Blocks     int `json:"blocks"`
	BlocksFree int `json:"blocks_free"`
	Leases     int `json:"leases"`
	Loads      int `json:"loads"`
	Running    int `json:"running"`
	Waiting    int `json:"waiting"`
	Loading    int `json:"loading"`
}

// Info asks an engine for its blocks and leases.
func (p *Proc) Info(t testing.TB) Info {
	t.Helper()
	var out struct {
		Tandem Info `json:"tandem"`
	}
	if err := json.Unmarshal(p.Get(t, "/server_info"), &out); err != nil {
		t.Fatal(err)
	}
	return out.Tandem
}

// AllFree returns when no request is left and every block is free, without a
// lease having to expire.
func (p *Proc) AllFree(t testing.TB) {
	t.Helper()
	Eventually(t, "every block of "+p.Name+" is free", func() bool {
		i := p.Info(t)
		return i.BlocksFree == i.Blocks && i.Leases == 0 && i.Loads == 0 && i.Running+i.Waiting+i.Loading == 0
	})
	if n := p.Metric(t, "vllm:nixl_num_kv_expired_reqs_total"); n != 0 {
		t.Errorf("%v leases of %s had to expire", n, p.Name)
	}
}

// A Set is a prefill engine, a decode engine and a router in front of them.
type Set struct{ P, D, Router *Proc }

// StartSet starts a set. Engine gets the arguments of both engines, for example
// the model or --sim.
func StartSet(t testing.TB, engine, prefill, decode []string) *Set {
	t.Helper()
	token := Token(t)
	s := &Set{
		P: Engine(t, "P", "kv_producer", token, append(append([]string{}, engine...), prefill...)...),
		D: Engine(t, "D", "kv_consumer", token, append(append([]string{}, engine...), decode...)...),
	}
	s.P.Ready(t)
	s.D.Ready(t)
	s.Router = Start(t, "router", "route", "--port", "0", "--prefill", s.P.URL, "--decode", s.D.URL).Ready(t)
	return s
}

// Engine starts `tandem serve` with a connector.
func Engine(t testing.TB, name, role, token string, args ...string) *Proc {
	t.Helper()
	transfer := fmt.Sprintf(`{"kv_connector":"NixlConnector","kv_role":%q,"kv_load_failure_policy":"fail","engine_id":%q}`, role, name)
	return Start(t, name, append([]string{
		"serve", "--port", "0", "--kv-transfer-config", transfer, "--peer-listen", "127.0.0.1:0",
		"--cluster-token-file", token,
	}, args...)...)
}

// Run runs `tandem args...` to its end and returns its exit status and what it
// printed.
func Run(t testing.TB, args ...string) (code int, log string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guard)
	defer cancel()
	out, err := exec.CommandContext(ctx, Binary(t), args...).CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("tandem %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if exit != nil {
		code = exit.ExitCode()
	}
	return code, string(out)
}
