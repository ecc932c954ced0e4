package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/internal/connector"
	"tandem/internal/fault"
	"tandem/internal/router"
)

// mountChaos puts the admin routes of in before h. Without an injector they do
// not exist.
func mountChaos(h http.Handler, in *fault.Injector, key string) http.Handler {
	if in == nil {
		return h
	}
	admin := fault.Admin(in, key)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == fault.AdminPath || strings.HasPrefix(q.URL.Path, fault.AdminPath+"/") {
			admin.ServeHTTP(w, q)
			return
		}
		h.ServeHTTP(w, q)
	})
}

// killSelf is action kill: as if somebody else had sent the signal.
func killSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// chaosOptions are the flags of all `tandem chaos` commands.
type chaosOptions struct {
	url, on, key string
}

// A chaosTarget is a process that faults can be injected into.
type chaosTarget struct{ name, role, url string }

func chaosCommand() *cobra.Command {
	var o chaosOptions
	cmd := &cobra.Command{
		Use: "chaos", Short: "Break a running cluster on purpose",
		Long: "Break a running cluster on purpose. Its processes must have been started with --enable-chaos.\n\n" +
			"Points and the actions that make sense there:\n" + chaosCells(),
	}
	f := cmd.PersistentFlags()
	f.StringVar(&o.url, "url", "http://127.0.0.1:8000", "URL of a router, or of one engine")
	f.StringVar(&o.on, "on", "all", "which of the router's cluster: all, router, prefill, decode, or an engine's id such as D1")
	f.StringVar(&o.key, "api-key", os.Getenv("TANDEM_API_KEY"), "key of the processes (environment: TANDEM_API_KEY)")
	cmd.AddCommand(chaosSet(&o), chaosStatus(&o), chaosOff(&o), chaosRecord(&o), chaosReplay(&o))
	return cmd
}

func chaosCells() string {
	var b strings.Builder
	for _, p := range fault.Points() {
		fmt.Fprintf(&b, "  %-10s", p)
		for _, a := range fault.Actions(p) {
			fmt.Fprintf(&b, " %s", a)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// faultFlags describe one fault.
type faultFlags struct {
	fault       fault.Fault
	seed        uint64
	point       string
	action      string
	class       string
	delay       time.Duration
	nth         []uint
	probability float64
}

func (p *faultFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&p.point, "point", "", "where: see tandem chaos --help")
	f.StringVar(&p.action, "action", "", "what goes wrong there")
	f.StringVar(&p.class, "class", "", "of an error: what it is taken for")
	f.IntVar(&p.fault.Status, "status", 0, "of an error at point http: its status")
	f.Int64Var(&p.fault.Bytes, "bytes", 0, "of a stall, a cut or a failing read: bytes that arrive before")
	f.DurationVar(&p.delay, "delay", 0, "of a delay: how long")
	f.IntVar(&p.fault.Every, "every", 0, "hit each so many tiles of a read in place of one")
	f.UintSliceVar(&p.nth, "nth", nil, "numbers of the calls that are hit, from 1")
	f.Float64Var(&p.probability, "probability", 0, "part of the calls that are hit")
	f.Uint64Var(&p.seed, "seed", 0, "source of what is drawn")
	f.StringVar(&p.fault.When.Pattern, "pattern", "", "calls that pass and are hit, again and again, such as OOOX")
	f.BoolVar(&p.fault.When.Once, "once", false, "the pattern does not start again")
	f.StringVar(&p.fault.When.RequestID, "request-id", "", "only calls of these requests, with * and ?")
	f.StringVar(&p.fault.When.Peer, "peer", "", "only calls to these host:port, with * and ?")
}

// plan returns what the flags say.
func (p *faultFlags) plan() fault.Plan {
	f := p.fault
	f.Point, f.Action, f.Class = fault.Point(p.point), fault.Action(p.action), connector.LoadClass(p.class)
	f.Delay, f.When.Probability = fault.Duration(p.delay), p.probability
	for _, n := range p.nth {
		f.When.Nth = append(f.When.Nth, uint64(n))
	}
	return fault.Plan{Seed: p.seed, Faults: []fault.Fault{f}}
}

func chaosSet(o *chaosOptions) *cobra.Command {
	var p faultFlags
	cmd := &cobra.Command{
		Use: "set [PLAN.json | -]", Short: "Set a plan, from a file or from flags", Args: cobra.MaximumNArgs(1),
		Example: "  tandem chaos set --on D1 --point handshake --action error --nth 1\n" +
			`  echo '{"faults":[{"point":"claim","action":"drop","when":{"pattern":"OOX"}}]}' | tandem chaos set -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			plan := p.plan()
			if len(args) == 1 {
				if p.point != "" || p.action != "" {
					return errors.New("chaos set: give a plan or flags, not both")
				}
				raw, err := readInput(args[0], cmd.InOrStdin(), fault.MaxPlan)
				if err != nil {
					return fmt.Errorf("chaos set: %w", err)
				}
				if plan, err = fault.ParsePlan(raw); err != nil {
					return err
				}
			} else if p.point == "" || p.action == "" {
				return errors.New("chaos set: want a plan, - for standard input, or --point and --action")
			}
			if err := plan.Check(); err != nil {
				return err
			}
			raw, err := json.Marshal(plan)
			if err != nil {
				return err
			}
			return o.each(cmd.Context(), cmd.OutOrStdout(), http.MethodPut, fault.AdminPath, raw)
		},
	}
	p.flags(cmd.Flags())
	return cmd
}

func readInput(name string, in io.Reader, limit int64) ([]byte, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close() //nolint:errcheck // only read
		in = f
	}
	return io.ReadAll(io.LimitReader(in, limit+1))
}

func chaosStatus(o *chaosOptions) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show plans and what they did", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.each(cmd.Context(), cmd.OutOrStdout(), http.MethodGet, fault.AdminPath, nil)
		},
	}
}

func chaosOff(o *chaosOptions) *cobra.Command {
	return &cobra.Command{
		Use: "off", Short: "End all faults", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.each(cmd.Context(), cmd.OutOrStdout(), http.MethodDelete, fault.AdminPath, nil)
		},
	}
}

func chaosRecord(o *chaosOptions) *cobra.Command {
	return &cobra.Command{
		Use: "record", Short: "Print what one process was injected with, to be replayed", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			targets, err := o.targets(cmd.Context())
			if err != nil {
				return err
			}
			var found []byte
			var of []string
			for _, t := range targets {
				body, err := o.ask(cmd.Context(), t, http.MethodGet, fault.AdminPath+"/record", nil)
				if err != nil {
					return err
				}
				if len(body) > 0 {
					found, of = body, append(of, t.name)
				}
			}
			if len(of) > 1 {
				return fmt.Errorf("chaos record: %s have one each; choose with --on", strings.Join(of, " and "))
			}
			_, err = cmd.OutOrStdout().Write(found)
			return err
		},
	}
}

func chaosReplay(o *chaosOptions) *cobra.Command {
	return &cobra.Command{
		Use: "replay [RECORD | -]", Short: "Give the same calls the same faults again", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			raw, err := readInput(args[0], cmd.InOrStdin(), fault.MaxRecord)
			if err != nil {
				return fmt.Errorf("chaos replay: %w", err)
			}
			if _, err := fault.ReadEvents(bytes.NewReader(raw)); err != nil {
				return err
			}
			return o.each(cmd.Context(), cmd.OutOrStdout(), http.MethodPut, fault.AdminPath+"/replay", raw)
		},
	}
}

// each asks every chosen process and prints what it then has.
func (o *chaosOptions) each(ctx context.Context, w io.Writer, method, path string, body []byte) error {
	targets, err := o.targets(ctx)
	if err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "PROCESS\tMODE\tFAULTS\tFIRED\tWHAT")
	for _, to := range targets {
		raw, e := o.ask(ctx, to, method, path, body)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		var s fault.Status
		if e := json.Unmarshal(raw, &s); e != nil {
			err = errors.Join(err, fmt.Errorf("chaos: %s answered what is no status: %w", to.name, e))
			continue
		}
		faults := s.Replaying
		if s.Plan != nil {
			faults = len(s.Plan.Faults)
		}
		what := make([]string, len(s.Counts))
		for i, c := range s.Counts {
			what[i] = fmt.Sprintf("%s %s %d", c.Point, c.Action, c.Fired)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\n", to.name, s.Mode, faults, s.Fired, dash(strings.Join(what, ", ")))
	}
	return errors.Join(t.Flush(), err)
}

// ask sends one admin request.
func (o *chaosOptions) ask(ctx context.Context, to chaosTarget, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, to.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	authorize(req, o.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("chaos: %s: %w", to.name, err)
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	out, err := io.ReadAll(io.LimitReader(resp.Body, fault.MaxRecord))
	switch {
	case err != nil:
		return nil, fmt.Errorf("chaos: %s: %w", to.name, err)
	case resp.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("chaos: %s takes no faults; start it with --enable-chaos", to.name)
	case resp.StatusCode == http.StatusUnauthorized:
		return nil, fmt.Errorf("chaos: %s wants its API key; give it with --api-key or TANDEM_API_KEY", to.name)
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("chaos: %s: status %d: %s", to.name, resp.StatusCode, bytes.TrimSpace(out))
	}
	return out, nil
}

// targets returns what --on names. A router knows its engines; an engine is only
// itself.
func (o *chaosOptions) targets(ctx context.Context) ([]chaosTarget, error) {
	url := strings.TrimRight(o.url, "/")
	code, body, err := get(ctx, url+"/status", "")
	if err != nil {
		return nil, fmt.Errorf("chaos: %w; is a router or an engine at %s? give another with --url", err, url)
	}
	var s router.Status
	if code == http.StatusNotFound {
		return []chaosTarget{{"engine", "engine", url}}, nil
	} else if err := json.Unmarshal(body, &s); err != nil {
		return nil, fmt.Errorf("chaos: %s answered what is no status: %w", url, err)
	}
	all := []chaosTarget{{"router", "router", url}}
	for _, b := range s.Backends {
		t := chaosTarget{b.URL, b.Role, b.URL}
		var info engineInfo
		if json.Unmarshal(b.Info, &info) == nil && info.Tandem.EngineID != "" {
			t.name = info.Tandem.EngineID
		}
		all = append(all, t)
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(t chaosTarget) bool {
		return o.on != "all" && o.on != t.name && o.on != t.role && o.on != t.url
	})
	if len(chosen) == 0 {
		names := make([]string, len(all))
		for i, t := range all {
			names[i] = t.name
		}
		return nil, fmt.Errorf("chaos: --on %s names nothing; want all, router, prefill, decode, or one of %s", o.on, strings.Join(names, ", "))
	}
	return chosen, nil
}
