package telemetry

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/prometheus/client_golang/prometheus"

	"tandem/internal/backend"
	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/test/pages"
)

// openLabels are the labels whose values are not a list in the code, and what
// they hold.
var openLabels = map[string]string{
	"backend":        "`HOST:PORT` of the engine",
	"peer":           fmt.Sprintf("id of the engine that is read from; the %d seen last, the others are `%s`", maxPeers, otherPeers),
	"handler":        "path of the API, `other` for all that do not exist",
	"method":         "HTTP method, `other` for unknown ones",
	"path":           "`/v1/completions`, `/v1/chat/completions`",
	"route":          "`pd`, `decode-only`, `none` (refused or failed before)",
	"status":         "HTTP status; `0`: the client left before the end",
	"version":        "what `tandem version` prints",
	"block_size":     "tokens",
	"num_gpu_blocks": "blocks; the name is vLLM's",
}

// legFailures is the label outcome of legs that failed.
const legFailures = "`no_answer`, or the engine's HTTP status"

// A family is one metric as it is scraped.
type family struct {
	name, help, kind string
	labels           map[string][]string // values that were seen
}

// families adds what is scraped of a registry to all. Everything that is
// registered must be there, or the page would lack it.
func families(t *testing.T, reg *prometheus.Registry, all map[string]*family) {
	t.Helper()
	list, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, mf := range list {
		f := all[mf.GetName()]
		if f == nil {
			f = &family{name: mf.GetName(), help: mf.GetHelp(), kind: strings.ToLower(mf.GetType().String()), labels: map[string][]string{}}
			all[f.name] = f
		}
		for _, m := range mf.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(f.labels[l.GetName()], l.GetValue()) {
					f.labels[l.GetName()] = append(f.labels[l.GetName()], l.GetValue())
				}
			}
		}
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		reg.Describe(descs)
		close(descs)
	}()
	name := regexp.MustCompile(`^Desc\{fqName: "([^"]+)"`)
	for d := range descs {
		m := name.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("what metric is %s?", d)
		}
		if all[m[1]] == nil && !optional.MatchString(m[1]) {
			t.Errorf("%s has no sample: this test must report something to it", m[1])
		}
	}
}

// optional are metrics of the process that the kernel or the Go release may not
// give.
var optional = regexp.MustCompile(`^(go|process)_`)

// everyFamily returns all metrics, each with a sample of every closed label.
func everyFamily(t *testing.T) map[string]*family {
	t.Helper()
	all := map[string]*family{}
	m := NewEngine(EngineConfig{Model: "m", Version: "v", MaxModelLen: 1000, BlockTokens: 16, Blocks: 8, LostLines: func() uint64 { return 0 }})
	m.Watch(func() engine.Status { return engine.Status{} }, func() connector.LeaseStats { return connector.LeaseStats{} })
	for _, c := range connector.LoadClasses() {
		m.Connector.Failed("P1", c)
	}
	m.Connector.ReturnFailed("P1")
	m.Connector.Transfer(connector.Transfer{Peer: "P1"})
	m.Server.Request("/v1/completions", "POST", 200)
	families(t, m.reg, all)

	reg, r := routerMetrics("v")
	r.Request("/v1/completions", "pd", 200, 1)
	for _, role := range []backend.Role{backend.Prefill, backend.Decode} {
		r.Leg(string(role), "h:1", "ok", 1)
		r.Retry(string(role), "no_answer")
		r.State(string(role), "h:1", true)
	}
	families(t, reg, all)
	return all
}

// unit returns the unit of a metric: that of its name, else what its help counts.
func (f *family) unit() string {
	count, _, _ := strings.Cut(f.help, " ")
	switch {
	case strings.HasSuffix(f.name, "_info"):
		return "–"
	case strings.Contains(f.name, "seconds"):
		return "s"
	case strings.Contains(f.name, "bytes"):
		return "bytes"
	case strings.HasPrefix(f.help, "Share"):
		return "0 to 1"
	case strings.Contains(f.name, "tokens") || strings.HasPrefix(f.help, "Prompt tokens") || count == "Tokens":
		return "tokens"
	}
	return "number"
}

// labelText describes the labels of a metric, without those that all of an
// engine's have.
func (f *family) labelText() string {
	var out []string
	for _, l := range slices.Sorted(maps.Keys(f.labels)) {
		if l == "model_name" || l == "engine" {
			continue
		}
		text, open := openLabels[l]
		switch {
		case open:
		case l == "outcome" && f.name == "tandem_router_leg_seconds":
			text = "`ok`, `client_gone`, `shutdown`, `dropped` (another prompt of the same list failed), " + legFailures
		case l == "outcome" && f.name == "tandem_router_failed_legs_total":
			text = legFailures
		default:
			values := f.labels[l]
			slices.Sort(values)
			text = "`" + strings.Join(values, "`, `") + "`"
		}
		out = append(out, "`"+l+"`: "+text)
	}
	if out == nil {
		return "–"
	}
	return strings.Join(out, "<br>")
}

// docs/metrics.md says what the code exports: the template has the groups and
// when to look at a metric, the code all else.
func TestMetricsPageIsTheCode(t *testing.T) {
	all := everyFamily(t)
	told := map[string]bool{}
	funcs := template.FuncMap{
		"row": func(name, look string) (string, error) {
			f := all[name]
			if f == nil || told[name] {
				return "", fmt.Errorf("there is no metric %s, or it has a row already", name)
			}
			told[name] = true
			return fmt.Sprintf("| `%s` | %s, %s | %s | %s | %s |", name, f.kind, f.unit(), f.labelText(), f.help, look), nil
		},
		"rest": func(prefix string) string { // of the libraries' metrics: all that there are
			var out []string
			for _, name := range slices.Sorted(maps.Keys(all)) {
				if strings.HasPrefix(name, prefix) {
					told[name] = true
					out = append(out, "`"+name+"`")
				}
			}
			return strings.Join(out, ", ")
		},
		"classes": func() string {
			var out []string
			for _, c := range connector.LoadClasses() {
				out = append(out, "`"+string(c)+"`")
			}
			return strings.Join(out, ", ")
		},
		"known": func(names ...string) (string, error) { // a name in running text
			for _, name := range names {
				if all[name] == nil {
					return "", fmt.Errorf("there is no metric %s", name)
				}
			}
			return "`" + strings.Join(names, "`, `") + "`", nil
		},
	}
	pages.Compare(t, "metrics.md", "testdata/metrics.md.tmpl", funcs, nil)
	for name := range all {
		if !told[name] {
			t.Errorf("docs/metrics.md has no row for %s; testdata/metrics.md.tmpl is where it belongs", name)
		}
	}
}
