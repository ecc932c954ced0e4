package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

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
	} {
		if _, err := tandem(t, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("tandem %s: %v, want %q", strings.Join(c.args, " "), err, c.want)
		}
	}
}
