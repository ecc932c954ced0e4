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
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/internal/connector"
	"tandem/internal/fault"
	"tandem/internal/openai"
)

// mountChaos puts the admin routes of in, behind key, before h. Without an
// injector they do not exist.
func mountChaos(h http.Handler, in *fault.Injector, key string) http.Handler {
	if in == nil {
		return h
	}
	admin, must := fault.Admin(in, refuse), openai.NewKey(key)
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != fault.AdminPath && !strings.HasPrefix(q.URL.Path, fault.AdminPath+"/") {
			h.ServeHTTP(w, q)
			return
		}
		if err := must.Check(w.Header(), q); err != nil {
			refuse(w, err.Message, err.Status)
			return
		}
		admin.ServeHTTP(w, q)
	})
}

// refuse answers as http.Error does, with an error as engines have it.
func refuse(w http.ResponseWriter, text string, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(openai.NewError(status, "", "%s", text)) // the client may be gone
}

// chaosEnabled is what the log of a process begins with that takes faults.
const chaosEnabled = "chaos is enabled: tandem chaos can break this process"

// killSelf is action kill: as if somebody else had sent the signal.
func killSelf() { _ = syscall.Kill(os.Getpid(), syscall.SIGKILL) }

// chaosOptions are the flags of all `tandem chaos` commands.
type chaosOptions struct {
	url, on, key string
}

// A chaosTarget is a process that faults can be injected into.
type chaosTarget struct {
	name, url string
	sides     []fault.Side
}

func chaosCommand() *cobra.Command {
	var o chaosOptions
	cmd := &cobra.Command{
		Use: "chaos", Short: "Break a running cluster on purpose",
		Long: "Break a running cluster on purpose. Its processes must have been started with --enable-chaos.\n\n" +
			"Points, who meets them (D decode engines, P prefill engines), and the actions that make sense there:\n" + chaosCells() +
			"\nprocess kill ends a cluster of tandem up, which stops when one of its processes ends; use it with serve and route.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	f.StringVar(&o.url, "url", "http://127.0.0.1:8000", "URL of a router, or of one engine")
	f.StringVar(&o.on, "on", "all", "which of the router's cluster: all, router, prefill, decode, or an engine's id such as D1")
	f.StringVar(&o.key, "api-key", os.Getenv("TANDEM_API_KEY"), "--api-key of the engines, and --chaos-key of a router (environment: TANDEM_API_KEY)")
	cmd.AddCommand(chaosSet(&o), chaosStatus(&o), chaosOff(&o), chaosRecord(&o), chaosReplay(&o))
	return cmd
}

var sideLetters = map[fault.Side]string{fault.SideDecode: "D", fault.SidePrefill: "P", fault.SideRouter: "router"}

func chaosCells() string {
	var b strings.Builder
	for _, p := range fault.Points() {
		fmt.Fprintf(&b, "  %-10s %-6s", p, sideLetters[p.Side()])
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
	nth         []string
	probability float64
}

func (p *faultFlags) flags(f *pflag.FlagSet) {
	f.StringVar(&p.point, "point", "", "where it goes wrong; tandem chaos --help lists the points")
	f.StringVar(&p.action, "action", "", "what goes wrong there; tandem chaos --help lists what makes sense where")
	f.StringVar(&p.class, "class", "", "of an error: the class of failure that it is taken for, such as refused; empty: the first that the point has")
	f.IntVar(&p.fault.Status, "status", 0, "of an error at point http: its HTTP status, 400 to 599; 0 is 500")
	f.Int64Var(&p.fault.Bytes, "bytes", 0, "of a stall, a cut or a failing read: bytes that arrive before it")
	f.DurationVar(&p.delay, "delay", 0, "of a delay: how long, up to 10m")
	f.IntVar(&p.fault.Every, "every", 0, "hit each so many tiles of a read, 1 all of them; 0 hits one that the seed draws")
	f.StringSliceVar(&p.nth, "nth", nil, "numbers of the calls that are hit, from 1, such as 1,3")
	f.Float64Var(&p.probability, "probability", 0, "part of the calls that are hit, above 0 and up to 1")
	f.Uint64Var(&p.seed, "seed", 0, "source of what is drawn: the same seed hits the same calls")
	f.StringVar(&p.fault.When.Pattern, "pattern", "", "calls that pass and are hit, again and again, such as OOOX")
	f.BoolVar(&p.fault.When.Once, "once", false, "the pattern does not start again")
	f.StringVar(&p.fault.When.RequestID, "request-id", "", "only calls of these requests, with * and ?")
	f.StringVar(&p.fault.When.Peer, "peer", "", "only calls to these host:port, with * and ?")
}

// plan returns what the flags say; given tells which were set.
func (p *faultFlags) plan(given func(name string) bool) (fault.Plan, error) {
	if given("probability") && p.probability == 0 {
		return fault.Plan{}, errors.New("chaos set: --probability 0 hits nothing; `tandem chaos off` ends faults")
	}
	f := p.fault
	f.Point, f.Action, f.Class = fault.Point(p.point), fault.Action(p.action), connector.LoadClass(p.class)
	f.Delay, f.When.Probability = fault.Duration(p.delay), p.probability
	for _, text := range p.nth {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n == 0 {
			return fault.Plan{}, fmt.Errorf("chaos set: --nth %s: want numbers of calls, from 1, such as 1,3", text)
		}
		f.When.Nth = append(f.When.Nth, n)
	}
	return fault.Plan{Seed: p.seed, Faults: []fault.Fault{f}}, nil
}

func chaosSet(o *chaosOptions) *cobra.Command {
	var p faultFlags
	cmd := &cobra.Command{
		Use: "set [PLAN.json | -]", Short: "Set a plan, from a file or from flags", Args: cobra.MaximumNArgs(1),
		Example: "  tandem chaos set --on D1 --point read_piece --action cut --bytes 500000 --nth 1\n" +
			`  echo '{"faults":[{"point":"claim","action":"drop","when":{"pattern":"OOX"}}]}' | tandem chaos set -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			plan, err := p.read(cmd, args)
			if err != nil {
				return err
			}
			if err := plan.Check(); err != nil {
				return err
			}
			raw, err := json.Marshal(plan)
			if err != nil {
				return err
			}
			targets, err := o.targets(cmd.Context())
			if err != nil {
				return err
			}
			if err := meet(plan, targets); err != nil {
				return err
			}
			return o.each(cmd.Context(), cmd.OutOrStdout(), targets, http.MethodPut, fault.AdminPath, raw)
		},
	}
	p.flags(cmd.Flags())
	return cmd
}

// read returns the plan that the command line gives, as a file or by flags.
func (p *faultFlags) read(cmd *cobra.Command, args []string) (fault.Plan, error) {
	switch {
	case len(args) == 1 && (p.point != "" || p.action != ""):
		return fault.Plan{}, errors.New("chaos set: give a plan or flags, not both")
	case len(args) == 1:
		raw, err := readInput(args[0], cmd.InOrStdin(), fault.MaxPlan)
		if err != nil {
			return fault.Plan{}, fmt.Errorf("chaos set: %w", err)
		}
		return fault.ParsePlan(raw)
	case p.point == "" || p.action == "":
		return fault.Plan{}, errors.New("chaos set: want a plan, - for standard input, or --point and --action")
	}
	return p.plan(cmd.Flags().Changed)
}

func names(targets []chaosTarget) string {
	out := make([]string, len(targets))
	for i, t := range targets {
		out[i] = t.name
	}
	return strings.Join(out, ", ")
}

// meet refuses a fault that none of the chosen processes can ever meet.
func meet(plan fault.Plan, targets []chaosTarget) error {
	for i, f := range plan.Faults {
		side := f.Point.Side()
		if slices.ContainsFunc(targets, func(t chaosTarget) bool { return slices.Contains(t.sides, side) }) {
			continue
		}
		where := "the router"
		if side != fault.SideRouter {
			where = string(side) + " engines"
		}
		return fmt.Errorf("chaos set: faults[%d]: %s happens on %s, not on %s; use --on %s with the router's --url", i, f.Point, where, names(targets), side)
	}
	return nil
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
			return o.all(cmd, http.MethodGet, fault.AdminPath, nil)
		},
	}
}

func chaosOff(o *chaosOptions) *cobra.Command {
	return &cobra.Command{
		Use: "off", Short: "End all faults", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.all(cmd, http.MethodDelete, fault.AdminPath, nil)
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
			if len(of) == 0 {
				_, err = fmt.Fprintln(cmd.ErrOrStderr(), "chaos record: no fault has fired since the last plan was set")
				return err
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
			return o.all(cmd, http.MethodPut, fault.AdminPath+"/replay", raw)
		},
	}
}

// all is each for what --on chooses.
func (o *chaosOptions) all(cmd *cobra.Command, method, path string, body []byte) error {
	targets, err := o.targets(cmd.Context())
	if err != nil {
		return err
	}
	return o.each(cmd.Context(), cmd.OutOrStdout(), targets, method, path, body)
}

// each asks every target and prints what it then has.
func (o *chaosOptions) each(ctx context.Context, w io.Writer, targets []chaosTarget, method, path string, body []byte) (err error) {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	head := "PROCESS\tMODE\tFAULTS\tFIRED\tWHAT\n"
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
		fmt.Fprintf(t, "%s%s\t%s\t%d\t%d\t%s\n", head, to.name, s.Mode, faults, s.Fired, dash(strings.Join(what, ", ")))
		head = ""
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
		return nil, fmt.Errorf("chaos: %s takes no faults; start it with --enable-chaos (tandem up --enable-chaos)", to.name)
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
	base, err := baseURL(o.url)
	if err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	s, err := fetchStatus(ctx, base)
	if err != nil {
		return nil, fmt.Errorf("chaos: %w", err)
	}
	var all []chaosTarget
	if s.Role == "router" {
		all = append(all, chaosTarget{"router", base, []fault.Side{fault.SideRouter}})
	}
	for _, b := range s.Backends {
		all = append(all, engineTarget(b.URL, fault.Side(b.Role), b.Info))
	}
	chosen := slices.DeleteFunc(slices.Clone(all), func(t chaosTarget) bool {
		return o.on != "all" && o.on != t.name && o.on != t.url && !slices.Contains(t.sides, fault.Side(o.on))
	})
	if len(chosen) == 0 {
		return nil, fmt.Errorf("chaos: --on %s names nothing at %s; want all, router, prefill, decode, or one of %s", o.on, base, names(all))
	}
	return chosen, nil
}

// engineTarget is the engine at url, whose /server_info is raw. It is on the side
// that its role says, and on the one that its router uses it for, if it has one.
func engineTarget(url string, used fault.Side, raw []byte) chaosTarget {
	t := chaosTarget{name: url, url: url}
	if used == fault.SidePrefill || used == fault.SideDecode {
		t.sides = append(t.sides, used)
	}
	var info engineInfo
	if json.Unmarshal(raw, &info) != nil {
		return t
	}
	if info.Tandem.EngineID != "" {
		t.name = info.Tandem.EngineID
	}
	role := connector.Role(info.Tandem.Role)
	if role.Produces() {
		t.sides = append(t.sides, fault.SidePrefill)
	}
	if role.Consumes() {
		t.sides = append(t.sides, fault.SideDecode)
	}
	return t
}
