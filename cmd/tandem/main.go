// Command tandem serves large language models with prefill and decode in
// separate engines: it is the engine, the router in front of the engines, and
// the tools around them.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// Exit codes, besides 0 for what ended as it should: by itself, or within its
// drain time after a signal.
const (
	exitFailed = 1
	exitForced = 130 // a second signal, which waits for nothing
)

// version is set by the linker.
var version = "unknown"

func main() {
	if err := run(); err != nil && !errors.Is(err, context.Canceled) {
		for line := range strings.Lines(err.Error()) { // one for each joined error
			fmt.Fprintln(os.Stderr, "tandem:", strings.TrimSuffix(line, "\n"))
		}
		os.Exit(exitFailed)
	}
}

func run() error {
	ctx, stop := signals()
	defer stop()
	return rootCommand().ExecuteContext(ctx)
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "tandem",
		Short:         "Serve language models with prefill and decode in separate engines",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())
	})
	root.AddCommand(upCommand(), serveCommand(), routeCommand(), statusCommand(), chaosCommand(), modelCommand(), versionCommand())
	return root
}

// signals returns a context that ends with the first SIGINT or SIGTERM. The
// second one ends the process at once: whoever sends it does not want to wait.
func signals() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-ch
		cancel()
		<-ch
		os.Exit(exitForced)
	}()
	return ctx, cancel
}

// shortest is the least that a time limit may be.
const shortest = time.Millisecond

// least refuses a value of a flag that is too small.
func least[T cmp.Ordered](flag string, value, limit T) error {
	if value < limit {
		return fmt.Errorf("%s %v: want at least %v", flag, value, limit)
	}
	return nil
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
