package main

import (
	"net/http"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"tandem/internal/backend"
	"tandem/internal/fault"
	"tandem/internal/router"
	"tandem/internal/telemetry"
)

func routeCommand() *cobra.Command {
	var (
		cfg        router.Config
		host       string
		port       int
		level      string
		grace      time.Duration
		announceFD int
		supervised bool
		chaos      bool
		key        string
	)
	cfg.Backend = backend.DefaultLimits()
	cmd := &cobra.Command{
		Use:   "route --prefill URL --decode URL",
		Short: "Run the router in front of prefill and decode engines, Tandem's or vLLM's",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			if supervised {
				var cancel func()
				ctx, cancel = supervise(ctx, cmd.InOrStdin())
				defer cancel()
			}
			if err := bounds(
				least("--retries", cfg.Retries, 0), least("--drain-timeout", grace, 0), least("--connect-timeout", cfg.Backend.Connect, shortest),
				least("--leg-timeout", cfg.Backend.Header, shortest), least("--silence-timeout", cfg.Backend.Silence, shortest),
				least("--write-timeout", cfg.WriteTimeout, shortest),
			); err != nil {
				return err
			}
			log, logs, err := newLogger(cmd.ErrOrStderr(), level)
			if err != nil {
				return err
			}
			defer logs.Close()
			cfg.Log, cfg.Version = log, version
			cfg.Metrics, cfg.MetricsHandler = telemetry.Router(version)
			var in *fault.Injector
			if chaos {
				log.Warn(chaosEnabled)
				in = fault.New(fault.Config{Log: log})
				cfg.Chaos = func() string { return string(in.Status().Mode) }
				cfg.Decorate = func(rt http.RoundTripper) http.RoundTripper { return fault.Transport(rt, in) }
			}
			r, err := router.New(cfg)
			if err != nil {
				return err
			}
			ln, err := listen(ctx, host, port)
			if err != nil {
				return err
			}
			if err := announce(announceFD, ln); err != nil {
				return err
			}
			log.Info("router started", "url", listenerURL(ln), "prefill", cfg.Prefill, "decode", cfg.Decode)
			g, ctx := errgroup.WithContext(ctx)
			g.Go(func() error { return r.Run(ctx) })
			g.Go(func() error { return serveHTTP(ctx, ln, mountChaos(r.Handler(), in, key), log, grace, nil, r.Stop) })
			return g.Wait()
		},
	}
	f := cmd.Flags()
	f.StringArrayVar(&cfg.Prefill, "prefill", nil, "URL of a prefill engine, http://HOST:PORT; at least one, may be given several times")
	f.StringArrayVar(&cfg.Decode, "decode", nil, "URL of a decode engine, http://HOST:PORT; at least one, may be given several times")
	f.StringVar(&host, "host", "127.0.0.1", "address to listen on; 0.0.0.0 is every one of this host")
	f.IntVar(&port, "port", 8000, "port to listen on, up to 65535; 0 for a free one")
	f.IntVar(&cfg.Retries, "retries", 1, "further tries on other engines before the first byte of an answer, 0 or more")
	f.DurationVar(&cfg.Backend.Connect, "connect-timeout", cfg.Backend.Connect, "longest time to connect to an engine, at least 1ms")
	f.DurationVar(&cfg.Backend.Header, "leg-timeout", cfg.Backend.Header, "longest time from a request to an engine's status line, at least 1ms; a prefill must fit into it")
	f.DurationVar(&cfg.Backend.Silence, "silence-timeout", cfg.Backend.Silence, "longest time without a byte of an answer that an engine has begun, at least 1ms")
	f.DurationVar(&cfg.WriteTimeout, "write-timeout", 30*time.Second, "longest time that one write to a client may take, at least 1ms")
	f.StringVar(&cfg.SaltHeader, "cache-salt-header", "", "request header that a trusted edge sets for each tenant; tenants share no cached prefix, whatever cache_salt a client sends")
	f.DurationVar(&grace, "drain-timeout", 30*time.Second, "longest time to finish running requests after SIGTERM; what still runs then ends with an error")
	f.BoolVar(&chaos, "enable-chaos", false, "let tandem chaos break the legs of requests; not where others rely on it")
	f.StringVar(&key, "chaos-key", os.Getenv("TANDEM_API_KEY"), "key for /admin/chaos, empty: none is asked for (environment: TANDEM_API_KEY); clients' keys are the engines' matter")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	f.IntVar(&announceFD, "announce-fd", 0, "descriptor to write the URL to")
	f.BoolVar(&supervised, "supervised", false, "end with standard input")
	hide(cmd, "announce-fd", "supervised")
	return cmd
}

// hide keeps flags that only `tandem up` gives out of the help.
func hide(cmd *cobra.Command, names ...string) {
	for _, n := range names {
		if err := cmd.Flags().MarkHidden(n); err != nil {
			panic(err) // a name that is not defined
		}
	}
}
