package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"tandem/internal/router"
)

func statusCommand() *cobra.Command {
	var (
		at     string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use: "status", Short: "Show the engines, peers, paths, leases and blocks of a cluster", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			base, err := baseURL(at)
			if err != nil {
				return fmt.Errorf("status: %w", err)
			}
			return status(cmd.Context(), base, asJSON, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&at, "url", "http://127.0.0.1:8000", "URL of a router, or of one engine")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// baseURL checks --url and returns it without a slash at its end.
func baseURL(raw string) (string, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("--url %q: want http://HOST:PORT", raw)
	}
	return strings.TrimRight(raw, "/"), nil
}

// status asks a router for its cluster; an engine answers for itself.
func status(ctx context.Context, url string, asJSON bool, w io.Writer) error {
	s, err := fetchStatus(ctx, url)
	if err != nil {
		return fmt.Errorf("status: %w", err)
	}
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(s)
	}
	return printStatus(w, url, s)
}

// fetchStatus returns the status of the router at url, or that of an engine as
// its own only backend.
func fetchStatus(ctx context.Context, url string) (s router.Status, err error) {
	code, body, err := get(ctx, url+"/status", "")
	if err != nil {
		return s, fmt.Errorf("%w; is a router or an engine at %s? give another with --url", err, url)
	}
	if code != http.StatusNotFound {
		if err := json.Unmarshal(body, &s); err != nil {
			return s, fmt.Errorf("%s answered what is no status: %w", url, err)
		}
		return s, nil
	}
	if code, body, err = get(ctx, url+"/server_info", ""); err != nil || code != http.StatusOK {
		return s, fmt.Errorf("%s is neither a router nor an engine of Tandem (status %d)", url, code)
	}
	s = router.Status{Role: "engine", Backends: []router.BackendStatus{{Role: "engine", URL: url, State: "ready", Info: body}}}
	var info engineInfo
	if json.Unmarshal(body, &info) == nil {
		s.Version, s.Ready = info.Version, !info.Draining
		s.UptimeS = time.Since(time.Unix(info.Started, 0)).Seconds()
	}
	return s, nil
}

func printStatus(w io.Writer, url string, s router.Status) error {
	if s.Role == "router" {
		ready := "ready"
		if !s.Ready {
			ready = "not ready (" + s.Reason + ")"
		}
		fmt.Fprintf(w, "router %s  %s, version %s, up %.0f s\n\n", url, ready, s.Version, s.UptimeS)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "ROLE\tENGINE\tURL\tSTATE\tMODEL\tKERNELS\tRUNNING\tWAITING\tLOADING\tBLOCKS FREE\tCACHED\tLEASES\tEPOCH")
	var peers, chaos []string
	if s.Chaos != "" {
		chaos = append(chaos, "router "+s.Chaos)
	}
	for _, b := range s.Backends {
		var info engineInfo
		known := len(b.Info) > 0 && json.Unmarshal(b.Info, &info) == nil
		c := info.Tandem
		if info.Chaos != "" {
			chaos = append(chaos, cmp.Or(c.EngineID, b.URL)+" "+info.Chaos)
		}
		state := b.State
		if b.Reason != "" && b.State != "ready" {
			state += " (" + b.Reason + ")"
		}
		if !known || c.Blocks == 0 {
			fmt.Fprintf(t, "%s\t-\t%s\t%s\t%s\t-\t%d\t-\t-\t-\t-\t-\t-\n", b.Role, b.URL, state, dash(info.Model), b.Running)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d/%d\t%d\t%d\t%d\n", b.Role, dash(c.EngineID), b.URL, state, info.Model, info.Kernel,
			c.Running, c.Waiting, c.Loading, c.BlocksFree, c.Blocks, c.BlocksIndex, c.Leases, c.Epoch)
		for _, p := range c.Peers {
			line := fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d\t%s", dash(c.EngineID), dash(p.EngineID), p.Address, p.State, dash(p.Path), p.Epoch, p.Reason)
			if p.Error != "" {
				line += " last error: " + p.Error
			}
			peers = append(peers, line)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(chaos) > 0 {
		fmt.Fprintf(w, "\nchaos is enabled: %s; see tandem chaos status\n", strings.Join(chaos, ", "))
	}
	if len(peers) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "READER\tPEER\tADDRESS\tSTATE\tPATH\tEPOCH\tWHY")
	for _, p := range peers {
		fmt.Fprintln(t, p)
	}
	return t.Flush()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
