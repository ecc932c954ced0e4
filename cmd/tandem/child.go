package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// A child is one process of a cluster that `tandem up` runs.
type child struct {
	name string
	cmd  *exec.Cmd
	stop io.Closer // the child's standard input: closing it ends the child
	url  string
	done chan struct{} // closed when the process has ended
	err  error         // set before done is closed
	logs sync.WaitGroup
}

// A prefixer writes the lines of many children to one stream, each line whole
// and marked with who wrote it.
type prefixer struct {
	mu sync.Mutex
	w  io.Writer
}

func (p *prefixer) copy(name string, r io.Reader) {
	s := bufio.NewScanner(r)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		p.line(name, s.Text())
	}
	// What is left after an overlong line must be read, or the child blocks.
	_, _ = io.Copy(io.Discard, r)
}

func (p *prefixer) line(name, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.w, "%-7s| %s\n", name, text)
}

// secrets are what a child is given that nobody else may see: by the environment
// and by a pipe, since everyone on the machine can see arguments and a file would
// outlive a kill. Empty: none.
type secrets struct {
	apiKey, token string
}

// tokenFD is the descriptor at which a child finds the token.
const tokenFD = "/dev/fd/4"

// pipe returns a pipe from which the token can be read.
func (s secrets) pipe() (*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	_, err = w.WriteString(s.token) // a pipe takes it whole
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// start runs this program as a child and waits until it says where it listens.
func start(ctx context.Context, out *prefixer, name string, secret secrets, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("up: finding this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("up: starting %s: %w", name, err)
	}
	defer r.Close() //nolint:errcheck // read to its end
	files := []*os.File{w}
	if secret.token != "" {
		f, err := secret.pipe()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("up: starting %s: %w", name, err), w.Close())
		}
		defer f.Close() //nolint:errcheck // the child's
		files, args = append(files, f), append([]string{args[0], "--cluster-token-file", tokenFD}, args[1:]...)
	}
	c := &child{name: name, done: make(chan struct{})}
	// The context does not kill: children end by their standard input, so that
	// they drain.
	c.cmd = exec.Command(self, append(args, "--announce-fd", "3", "--supervised")...) //nolint:noctx,gosec // see above; our own program
	c.cmd.ExtraFiles = files
	c.cmd.Env = append(os.Environ(), "TANDEM_API_KEY="+secret.apiKey)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the parent, which ends all in order
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	c.stop = stdin
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	if err := c.cmd.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("up: starting %s: %w", name, err), w.Close())
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	c.logs.Go(func() { out.copy(name, stderr) })
	c.logs.Go(func() { out.copy(name, stdout) })
	go func() {
		c.logs.Wait()
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	said := make(chan error, 1)
	var a announcement
	go func() { said <- json.NewDecoder(r).Decode(&a) }()
	select {
	case err = <-said:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(30 * time.Second):
		err = errors.New("it did not say where it listens within 30 s")
	}
	if err != nil {
		c.end(time.Second)
		if errors.Is(err, io.EOF) {
			err = errors.New("it ended before it listened; its log is above")
		}
		return nil, fmt.Errorf("up: starting %s: %w", name, err)
	}
	c.url = a.URL
	return c, nil
}

// end asks the child to finish what it runs and kills it when it does not
// within grace.
func (c *child) end(grace time.Duration) {
	_ = c.stop.Close() // it may have ended already
	select {
	case <-c.done:
	case <-time.After(grace):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}
