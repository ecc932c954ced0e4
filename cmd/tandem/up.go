package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// upOptions are the flags of `tandem up`.
type upOptions struct {
	prefill, decode int
	host            string
	port            int
	threads         int
	sim             bool
	chaos           bool
	level           string
	apiKey          string
	grace           time.Duration
	engine          []string // flags passed on to both kinds of engine
	prefillArgs     []string
	decodeArgs      []string
}

func upCommand() *cobra.Command {
	var o upOptions
	cmd := &cobra.Command{
		Use:   "up [MODEL]",
		Short: "Start prefill engines, decode engines and a router on this machine",
		Long: "Start prefill engines, decode engines and a router as processes on this machine, with free ports\n" +
			"and a cluster token made for the occasion. Without MODEL the default model is used, and fetched when it is missing.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return up(cmd.Context(), o, args, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w; see %s --help (flags of tandem serve go through --engine-arg, with an equals sign)", err, cmd.CommandPath())
	})
	f := cmd.Flags()
	f.IntVar(&o.prefill, "prefill", 1, "number of prefill engines, at least 1")
	f.IntVar(&o.decode, "decode", 1, "number of decode engines, at least 1")
	f.StringVar(&o.host, "host", "127.0.0.1", "address of the router; the engines listen on 127.0.0.1")
	f.IntVar(&o.port, "port", 8000, "port of the router, up to 65535; 0 for a free one")
	f.IntVar(&o.threads, "threads", 0, "threads of each engine; 0 shares the cores that this process may use by its CPU set and control group among the engines, at least one each")
	f.BoolVar(&o.sim, "sim", false, "no model: synthetic tokens that depend on every KV byte")
	f.BoolVar(&o.chaos, "enable-chaos", false, "let tandem chaos break the cluster on purpose; not where others rely on it")
	f.StringVar(&o.apiKey, "api-key", os.Getenv("TANDEM_API_KEY"), "key that clients must send as a bearer token; empty: none is asked for (environment: TANDEM_API_KEY)")
	f.StringVar(&o.level, "log-level", "info", "debug, info, warn or error")
	f.DurationVar(&o.grace, "drain-timeout", 15*time.Second, "longest time for each process to finish after Ctrl-C or SIGTERM")
	f.StringArrayVar(&o.engine, "engine-arg", nil, "an argument of tandem serve for every engine, such as --max-model-len=4096; may be given several times")
	f.StringArrayVar(&o.prefillArgs, "prefill-arg", nil, "an argument of tandem serve for the prefill engines; may be given several times")
	f.StringArrayVar(&o.decodeArgs, "decode-arg", nil, "an argument of tandem serve for the decode engines; may be given several times")
	return cmd
}

// split explains an argument that was taken for the model because it was cut off
// from a flag for the engines; "" where none is.
func (o *upOptions) split() string {
	for flag, list := range map[string][]string{"--engine-arg": o.engine, "--prefill-arg": o.prefillArgs, "--decode-arg": o.decodeArgs} {
		for _, a := range list {
			if strings.HasPrefix(a, "--") && !strings.Contains(a, "=") {
				return fmt.Sprintf(" (an engine argument needs an equals sign: %s %s=VALUE)", flag, a)
			}
		}
	}
	return ""
}

// A cluster is the processes of one `tandem up`.
type cluster struct {
	opt     upOptions
	out     *prefixer
	engines []*child
	router  *child
}

func up(ctx context.Context, o upOptions, args []string, stdout, stderr io.Writer) error {
	if o.prefill < 1 || o.decode < 1 {
		return errors.New("up: want at least one prefill and one decode engine")
	}
	if err := cmp.Or(least("--threads", o.threads, 0), least("--drain-timeout", o.grace, 0)); err != nil {
		return err
	}
	if o.sim && len(args) > 0 {
		return fmt.Errorf("up: --sim runs without a model, but %s is given%s", args[0], o.split())
	}
	// A port that is taken is known before a model is loaded.
	ln, err := listen(ctx, o.host, o.port)
	if err != nil {
		return err
	}
	if err := ln.Close(); err != nil {
		return err
	}
	var model []string
	if !o.sim {
		path, err := findModel(ctx, args, stderr)
		if err != nil {
			return fmt.Errorf("%w%s", err, o.split())
		}
		model = []string{path}
	}
	c := &cluster{opt: o, out: &prefixer{w: stderr}}
	defer c.end()
	if err := c.start(ctx, model); err != nil {
		return err
	}
	if err := c.ready(ctx); err != nil {
		return err
	}
	c.greet(ctx, stdout)
	return c.wait(ctx)
}

// start runs the processes: the engines side by side, then the router.
func (c *cluster) start(ctx context.Context, model []string) error {
	var token [32]byte
	_, _ = rand.Read(token[:]) // never fails
	secret := secrets{apiKey: c.opt.apiKey, token: hex.EncodeToString(token[:])}
	n := c.opt.prefill + c.opt.decode
	threads := c.opt.threads
	if threads == 0 {
		threads = max(1, cpuBudget()/n)
	}
	c.engines = make([]*child, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		name, role, extra := fmt.Sprintf("P%d", i+1), "kv_producer", c.opt.prefillArgs
		if i >= c.opt.prefill {
			name, role, extra = fmt.Sprintf("D%d", i-c.opt.prefill+1), "kv_consumer", c.opt.decodeArgs
		}
		args := append([]string{"serve"}, model...)
		if c.opt.sim {
			args = append(args, "--sim")
		}
		transfer, err := json.Marshal(map[string]any{"kv_connector": "TandemConnector", "kv_role": role, "kv_load_failure_policy": "recompute", "engine_id": name})
		if err != nil {
			return err
		}
		args = append(args, "--host", "127.0.0.1", "--port", "0", "--threads", strconv.Itoa(threads), "--log-level", c.opt.level,
			"--kv-transfer-config", string(transfer), "--peer-listen", "127.0.0.1:0", "--drain-timeout", c.opt.grace.String())
		if c.opt.chaos {
			args = append(args, "--enable-chaos")
		}
		args = append(append(args, c.opt.engine...), extra...)
		wg.Go(func() { c.engines[i], errs[i] = start(ctx, c.out, name, secret, args...) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	args := []string{"route", "--host", c.opt.host, "--port", strconv.Itoa(c.opt.port), "--log-level", c.opt.level, "--drain-timeout", c.opt.grace.String()}
	for i, e := range c.engines {
		flag := "--prefill"
		if i >= c.opt.prefill {
			flag = "--decode"
		}
		args = append(args, flag, e.url)
	}
	var own secrets
	if c.opt.chaos {
		args, own.apiKey = append(args, "--enable-chaos"), c.opt.apiKey
	}
	var err error
	c.router, err = start(ctx, c.out, "router", own, args...)
	return err
}

// all returns the processes of a cluster that has started, the router last.
func (c *cluster) all() []*child { return append(slices.Clone(c.engines), c.router) }

// ready returns when every engine and the router can serve.
func (c *cluster) ready(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	waiting := c.all()
	for len(waiting) > 0 {
		e := waiting[0]
		if status, _, err := get(ctx, e.url+"/health/ready", ""); err == nil && status == http.StatusOK {
			waiting = waiting[1:]
			continue
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.done:
			return fmt.Errorf("up: %s ended before it was ready: %w; its log is above", e.name, exitError(e))
		case <-tick.C:
		}
	}
	return nil
}

func exitError(c *child) error {
	if c.err != nil {
		return c.err
	}
	return errors.New("exit status 0")
}

// greet runs one prompt through every pair that the router will use first, so
// that the engines meet, and prints how to go on.
func (c *cluster) greet(ctx context.Context, w io.Writer) {
	name := "sim"
	if status, body, err := get(ctx, c.router.url+"/v1/models", c.opt.apiKey); err == nil && status == http.StatusOK {
		var models struct{ Data []struct{ ID string } }
		if json.Unmarshal(body, &models) == nil && len(models.Data) > 0 {
			name = models.Data[0].ID
		}
	}
	for range max(c.opt.prefill, c.opt.decode) {
		body := fmt.Sprintf(`{"model":%q,"prompt":"The engines meet over this prompt.","max_tokens":1}`, name)
		if err := post(ctx, c.router.url+"/v1/completions", c.opt.apiKey, body); err != nil {
			c.out.line("up", "the first prompt did not get its answer: "+err.Error())
		}
	}
	fmt.Fprintf(w, "\nTandem is ready: %s (%d prefill, %d decode)\n", c.router.url, c.opt.prefill, c.opt.decode)
	if c.opt.sim {
		fmt.Fprintln(w, "It runs --sim: there is no model; tokens are synthetic, KV bytes and transfers are real.")
	}
	for _, e := range c.engines[c.opt.prefill:] {
		for _, line := range peerPaths(ctx, e) {
			fmt.Fprintln(w, line)
		}
	}
	chat := fmt.Sprintf(`{"model":%q,"stream":true,"temperature":0,"max_tokens":80,"messages":[{"role":"user","content":"What is a prime number? Answer in one sentence."}]}`, name)
	key := ""
	if c.opt.apiKey != "" {
		key = " -H \"Authorization: Bearer $TANDEM_API_KEY\""
	}
	fmt.Fprintf(w, "\nTry it:\n\n  curl -N %s/v1/chat/completions -H 'Content-Type: application/json'%s -d '%s'\n\n", c.router.url, key, chat)
	fmt.Fprintf(w, "Look at it:  %s status --url %s\n", os.Args[0], c.router.url)
	if c.opt.chaos {
		fmt.Fprintf(w, "Break it:    %s chaos set --url %s --on D1 --point read_piece --action cut --bytes 100000 --nth 1\n", os.Args[0], c.router.url)
	}
	fmt.Fprint(w, "Stop it:     Ctrl-C\n\n")
}

// peerPaths says how a decode engine reads from the peers it has met.
func peerPaths(ctx context.Context, e *child) []string {
	status, body, err := get(ctx, e.url+"/server_info", "")
	if err != nil || status != http.StatusOK {
		return nil
	}
	var info engineInfo
	if json.Unmarshal(body, &info) != nil {
		return nil
	}
	var out []string
	for _, p := range info.Tandem.Peers {
		out = append(out, fmt.Sprintf("%s reads KV from %s by %s (%s)", e.name, p.EngineID, p.Path, p.Reason))
	}
	return out
}

// wait returns when ctx ends, or when a process ended without being told to.
func (c *cluster) wait(ctx context.Context) error {
	all := c.all()
	gone := make(chan *child, len(all))
	for _, e := range all {
		go func() {
			<-e.done
			gone <- e
		}()
	}
	select {
	case <-ctx.Done():
		c.out.line("up", fmt.Sprintf("stopping; running requests have %v, Ctrl-C again stops at once", c.opt.grace))
		return nil
	case e := <-gone:
		return fmt.Errorf("up: %s ended: %w; stopping the others", e.name, exitError(e))
	}
}

// end stops what runs: the router first, so that no request meets an engine
// that is going.
func (c *cluster) end() {
	if c.router != nil {
		c.router.end(c.opt.grace + lastGrace)
	}
	var wg sync.WaitGroup
	for _, e := range c.engines {
		if e != nil {
			wg.Go(func() { e.end(c.opt.grace + lastGrace) })
		}
	}
	wg.Wait()
}

func get(ctx context.Context, url, key string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	authorize(req, key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	body, err = io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	return resp.StatusCode, body, err
}

func authorize(req *http.Request, key string) {
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
}

func post(ctx context.Context, url, key, body string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	authorize(req, key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // read to its end
	out, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, out)
	}
	return err
}
