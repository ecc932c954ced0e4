package cluster

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// A process that is killed leaves no program behind.
func TestFolderEndsWithItsProcess(t *testing.T) {
	const env = "CLUSTER_TEST_FOLDER"
	if dir := os.Getenv(env); dir != "" {
		fmt.Println(endsWithUs(dir))
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
	}
	dir := filepath.Join(t.TempDir(), "in")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), env+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(out).ReadString('\n')
	if _, gone := os.Stat(dir); gone != nil || err != nil || said != "<nil>\n" {
		t.Errorf("while it runs: %v, %v, %q", gone, err, said)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	Eventually(t, "the folder is gone", func() bool {
		_, err := os.Stat(dir)
		return os.IsNotExist(err)
	})
}
