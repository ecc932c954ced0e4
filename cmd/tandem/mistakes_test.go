package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tandem/internal/gguf/gguftest"
)

// A token file that everybody can read or write is named once, with what to do.
func TestTokenThatOthersCanRead(t *testing.T) {
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for mode, warns := range map[os.FileMode]int{0o600: 0, 0o640: 0, 0o644: 1, 0o602: 1} {
		token := filepath.Join(t.TempDir(), "token")
		if err := errors.Join(os.WriteFile(token, []byte(strings.Repeat("7", 64)), mode), os.Chmod(token, mode)); err != nil {
			t.Fatal(err)
		}
		out, err := tandem(t, "serve", "--sim", "--port", "0", "--cluster-token-file", token, "--peer-listen", taken.Addr().String(),
			"--kv-transfer-config", `{"kv_connector":"TandemConnector","kv_role":"kv_both"}`)
		if err == nil || strings.Count(out, `level=WARN msg="others can read the cluster token" do="chmod 600 `+token+`"`) != warns {
			t.Errorf("%o: %v, want %d warnings:\n%s", mode, err, warns, out)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := w.Chmod(0o666); err != nil {
		t.Fatal(err)
	}
	if othersReach(fmt.Sprintf("/dev/fd/%d", r.Fd())) {
		t.Error("a pipe is taken for a file")
	}
}

// A likely mistake is answered with its place and what to do instead.
func TestMistakesNameTheirRemedy(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(strings.Repeat("7", 64)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	taken, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	model := modelFile(t, gguftest.Tiny())
	engine := []string{
		"serve", "--sim", "--port", "0", "--cluster-token-file", token,
		"--kv-transfer-config", `{"kv_connector":"TandemConnector","kv_role":"kv_both"}`,
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"up", "--max-model-len", "4096"}, "unknown flag: --max-model-len; see tandem up --help (flags of tandem serve go through --engine-arg"},
		{[]string{"route", "--prefil", "http://h:1"}, "unknown flag: --prefil; see tandem route --help"},
		{[]string{"chaos", "set", "--pont", "claim"}, "unknown flag: --pont; see tandem chaos set --help"},
		{[]string{"serve", "--sim", "--port", taken.Addr().String()[len("127.0.0.1:"):]}, "address already in use; choose another --port, 0 for a free one"},
		{[]string{"serve", "--sim", "--host", "192.0.2.1", "--port", "0"}, "want an address of this host as --host"},
		{[]string{"serve", "--sim", "--port", "99999"}, "invalid port; want an address of this host as --host, and a --port up to 65535"},
		{[]string{"serve", "--sim", "--port", "0", "--served-model-name", ""}, "--served-model-name: want a name"},
		{append(engine, "--peer-listen", "5600"), "--peer-listen 5600: want HOST:PORT"},
		{append(engine, "--peer-advertise", "a.example"), "--peer-advertise a.example: want HOST:PORT"},
		{append(engine, "--peer-listen", taken.Addr().String()), taken.Addr().String() + ": bind: address already in use; choose another --peer-listen"},
		{append(engine, "--peer-socket-dir", dir), dir + ": want a directory of mode 0700 that belongs to this user; choose another with --peer-socket-dir"},
		{append(engine, "--peer-socket-dir", filepath.Join(dir, strings.Repeat("long", 30))), "too long: "},
		{append(engine, "--peer-socket-dir", filepath.Join(dir, strings.Repeat("long", 30))), "at most 107; choose another with --peer-socket-dir"},
		{[]string{"serve", "--sim", "--port", "0", "--num-gpu-blocks-override", "1000000000"}, "more than the memory of this machine"},
		{[]string{"serve", "--sim", "--port", "0", "--num-gpu-blocks-override", "1000000000"}, "MiB; give less than --num-gpu-blocks-override 1000000000"},
		{[]string{"serve", model, "--port", "0", "--kv-cache-memory", "1000TiB"}, "MiB; give less than --kv-cache-memory 1024000GiB"},
	} {
		if _, err := tandem(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("tandem %s: %v, want %q", strings.Join(c.args, " "), err, c.want)
		}
	}
}
