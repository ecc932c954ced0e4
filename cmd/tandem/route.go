package main

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/internal/backend"
	"tandem/internal/fault"
	"tandem/internal/router"
	"tandem/internal/telemetry"
)

// routeOptions are the flags of `tandem route`.
type routeOptions struct {
	cfg        router.Config
	host       string
	port       int
	level      string
	grace      time.Duration
	announceFD int
	supervised bool
	chaos      bool
	key        string
}

func (o *routeOptions) flags(f *pflag.FlagSet) {
	f.StringArrayVar(&o.cfg.Prefill, "prefill", nil, "URL of a prefill engine, http://HOST:PORT; at least one, may be given several times")
	f.StringArrayVar(&o.cfg.Decode, "decode", nil, "URL of a decode engine, http://HOST:PORT; at least one, may be given several times")
	f.StringVar(&o.host, "host", "127.0.0.1", "address to listen on; 0.0.0.0 is every one of this host")
	f.IntVar(&o.port, "port", 8000, "port to listen on, up to 65535; 0 for a free one")
	f.IntVar(&o.cfg.Retries, "retries", 1, "further tries on other engines before the first byte of an answer, 0 or more")
	f.DurationVar(&o.cfg.Backend.Connect, "connect-timeout", o.cfg.Backend.Connect, "longest time to connect to an engine, at least 1ms")
	f.DurationVar(&o.cfg.Backend.Header, "leg-timeout", o.cfg.Backend.Header, "longest time from a request to an engine's status line, at least 1ms; a prefill must fit into it")
	f.DurationVar(&o.cfg.Backend.Silence, "silence-timeout", o.cfg.Backend.Silence, "longest time without a byte of an answer that an engine has begun, at least 1ms")
	f.DurationVar(&o.cfg.WriteTimeout, "write-timeout", 30*time.Second, "longest time that one write to a client may take, at least 1ms")
	f.StringVar(&o.cfg.SaltHeader, "cache-salt-header", "", "request header that a trusted edge sets for each tenant; tenants share no cached prefix, whatever cache_salt a client sends")
	f.DurationVar(&o.grace, "drain-timeout", 30*time.Second, "longest time to finish running requests after SIGTERM; what still runs then ends with an error")
	f.BoolVar(&o.chaos, "enable-chaos", false, "let tandem chaos break the legs of requests; not where others rely on it")
	f.StringVar(&o.key, "chaos-key", os.Getenv("TANDEM_API_KEY"), "key for /admin/chaos, empty: none is asked for (environment: TANDEM_API_KEY); clients' keys are the engines' matter")
	f.StringVar(&o.level, "log-level", "info", "debug, info, warn or error")
	f.IntVar(&o.announceFD, "announce-fd", 0, "descriptor to write the URL to")
	f.BoolVar(&o.supervised, "supervised", false, "end with standard input")
}

func routeCommand() *cobra.Command {
	o := routeOptions{cfg: router.Config{Backend: backend.DefaultLimits()}}
	cmd := &cobra.Command{
		Use:   "route --prefill URL --decode URL",
		Short: "Run the router in front of prefill and decode engines, Tandem's or vLLM's",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if o.supervised {
				var cancel func()
				ctx, cancel = supervise(ctx, cmd.InOrStdin())
				defer cancel()
			}
			return route(ctx, &o, cmd.ErrOrStderr())
		},
	}
	o.flags(cmd.Flags())
	hide(cmd, "announce-fd", "supervised")
	return cmd
}

// route runs a router until ctx ends.
func route(ctx context.Context, o *routeOptions, w io.Writer) error {
	if err := cmp.Or(
		least("--retries", o.cfg.Retries, 0), least("--drain-timeout", o.grace, 0), least("--connect-timeout", o.cfg.Backend.Connect, shortest),
		least("--leg-timeout", o.cfg.Backend.Header, shortest), least("--silence-timeout", o.cfg.Backend.Silence, shortest),
		least("--write-timeout", o.cfg.WriteTimeout, shortest),
	); err != nil {
		return err
	}
	log, logs, err := newLogger(w, o.level)
	if err != nil {
		return err
	}
	defer logs.Close()
	o.cfg.Log, o.cfg.Version = log, version
	o.cfg.Metrics, o.cfg.MetricsHandler = telemetry.Router(version)
	var in *fault.Injector
	if o.chaos {
		log.Warn(chaosEnabled)
		in = fault.New(fault.Config{Log: log})
		o.cfg.Chaos = func() string { return string(in.Status().Mode) }
		o.cfg.Decorate = func(rt http.RoundTripper) http.RoundTripper { return fault.Transport(rt, in) }
	}
	r, err := router.New(o.cfg)
	if err != nil {
		return err
	}
	ln, err := listen(ctx, o.host, o.port)
	if err != nil {
		return err
	}
	if err := announce(o.announceFD, ln); err != nil {
		return err
	}
	log.Info("router started", "url", listenerURL(ln), "prefill", o.cfg.Prefill, "decode", o.cfg.Decode)
	// What is still to be answered in the drain needs the probes, and its hand-offs
	// are given back.
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() { r.Run(running) })
	err = serveHTTP(ctx, ln, mountChaos(r.Handler(), in, o.key), log, o.grace, nil, r.Stop)
	stop()
	all.Wait()
	return err
}

// hide keeps flags that only `tandem up` gives out of the help.
func hide(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		if err := cmd.Flags().MarkHidden(n); err != nil {
			panic(err) // a name that is not defined
		}
	}
}
