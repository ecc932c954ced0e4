// Command tandem serves large language models with prefill and decode in
// separate engines: it is the engine, the router in front of the engines, and
// the tools around them.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "unknown"

func main() {
	if err := run(); err != nil && !errors.Is(err, context.Canceled) {
		for line := range strings.Lines(err.Error()) { // one for each joined error
			fmt.Fprintln(os.Stderr, "tandem:", strings.TrimSuffix(line, "\n"))
		}
		os.Exit(1)
	}
}

func run() error {
	var leave leaver
	ctx, stop := signals(&leave)
	defer stop()
	return rootCommand(&leave).ExecuteContext(ctx)
}

func rootCommand(leave *leaver) *cobra.Command {
	root := &cobra.Command{
		Use:           "tandem",
		Short:         "Serve language models with prefill and decode in separate engines",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.AddCommand(upCommand(leave), serveCommand(leave), routeCommand(), statusCommand(), chaosCommand(), modelCommand(), versionCommand())
	return root
}

// A leaver removes folders with secrets and sockets when the process ends
// without unwinding.
type leaver struct {
	mu   sync.Mutex
	dirs []string
}

// tempDir makes a folder and returns what removes it.
func (l *leaver) tempDir(pattern string) (dir string, remove func() error, err error) {
	dir, err = os.MkdirTemp("", pattern)
	if err != nil {
		return "", nil, fmt.Errorf("making a temporary folder: %w", err)
	}
	l.mu.Lock()
	l.dirs = append(l.dirs, dir)
	l.mu.Unlock()
	return dir, func() error { return os.RemoveAll(dir) }, nil
}

func (l *leaver) clean() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.dirs {
		_ = os.RemoveAll(d) // the process ends now
	}
}

// signals returns a context that ends with the first SIGINT or SIGTERM. The
// second one ends the process at once: whoever sends it does not want to wait.
func signals(leave *leaver) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-ch
		cancel()
		<-ch
		leave.clean()
		os.Exit(130)
	}()
	return ctx, cancel
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "tandem", version)
			return err
		},
	}
}

// supervise ends the returned context when standard input does: `tandem up`
// holds the other end, so that no child outlives it however it ends.
func supervise(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		// The error says no more than the end of the stream does.
		_, _ = io.Copy(io.Discard, in)
		cancel()
	}()
	return ctx, cancel
}
