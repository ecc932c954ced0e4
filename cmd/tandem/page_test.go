package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tandem/internal/connector"
	"tandem/internal/engine"
	"tandem/test/pages"
)

// kinds are the types of flags, for people.
var kinds = map[string]string{
	"string": "text", "int": "number", "int64": "number", "uint64": "number", "float64": "number", "bool": "switch",
	"duration": "time", "bytes": "size", "stringArray": "text, several", "stringSlice": "list",
}

// fromEnvironment finds the variable that gives a flag its default.
var fromEnvironment = regexp.MustCompile(`\(environment: ([A-Z_]+)\)`)

// flagRows is the table of the flags that a command defines itself, without
// those that are hidden.
func flagRows(c *cobra.Command) (string, error) {
	var rows, bad []string
	add := func(f *pflag.Flag) {
		kind := kinds[f.Value.Type()]
		switch {
		case f.Name == "help" || f.Hidden:
			return
		case kind == "" || f.Usage == "":
			bad = append(bad, "--"+f.Name)
		}
		def := strings.Trim(f.DefValue, `"`)
		if f.Value.Type() == "bool" && def == "false" {
			def = "off"
		} else if f.Value.Type() == "bool" {
			def = "on"
		}
		if def != "" && def != "[]" {
			def = "`" + def + "`"
		} else {
			def = "–"
		}
		if v := fromEnvironment.FindStringSubmatch(f.Usage); v != nil {
			def = "`$" + v[1] + "`"
		}
		rows = append(rows, fmt.Sprintf("| `--%s` | %s | %s | %s |", f.Name, kind, def, escape(f.Usage)))
	}
	if c.HasPersistentFlags() {
		c.PersistentFlags().VisitAll(add)
	}
	c.LocalNonPersistentFlags().VisitAll(add)
	if bad != nil {
		return "", fmt.Errorf("%s: no help, or of a type without a name: %s", c.CommandPath(), strings.Join(bad, ", "))
	}
	if rows == nil {
		return "No flags.", nil
	}
	return "| flag | value | default | meaning |\n|---|---|---|---|\n" + strings.Join(rows, "\n"), nil
}

func escape(s string) string { return strings.NewReplacer("|", `\|`, "<", `\<`).Replace(s) }

// fieldRows is the table of the keys of a JSON object. What has no default in
// defaults has none.
func fieldRows(of reflect.Type, defaults map[string]string) (string, error) {
	out := "| key | value | default | meaning |\n|---|---|---|---|"
	for _, f := range reflect.VisibleFields(of) {
		name, help := f.Tag.Get("json"), f.Tag.Get("help")
		if help == "" {
			return "", fmt.Errorf("%s has no help", name)
		}
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		kind := map[reflect.Kind]string{
			reflect.String: "text", reflect.Bool: "true or false", reflect.Float64: "seconds, 0.001 to 86400",
			reflect.Int: "number", reflect.Slice: "list of texts", reflect.Struct: "object",
		}[t.Kind()]
		out += fmt.Sprintf("\n| `%s` | %s | %s | %s |", name, kind, cmp.Or(defaults[name], "–"), escape(help))
		delete(defaults, name)
	}
	for name := range defaults {
		return "", fmt.Errorf("there is no key %s", name)
	}
	return out, nil
}

// docs/config.md says what the commands take: the template has the order of
// the commands, the code all else.
func TestConfigPageIsTheCode(t *testing.T) {
	t.Setenv("TANDEM_API_KEY", "")
	root := rootCommand()
	told := map[string]bool{}
	seconds := func(d time.Duration) string { return fmt.Sprintf("`%v`", d.Seconds()) }
	funcs := template.FuncMap{
		"command": func(path string) (string, error) {
			c, _, err := root.Find(strings.Fields(path))
			if err != nil || c.CommandPath() != "tandem "+path || told[path] {
				return "", fmt.Errorf("there is no command %s, or it was told: %w", path, err)
			}
			told[path] = true
			rows, err := flagRows(c)
			use, _ := strings.CutSuffix(c.UseLine(), " [flags]")
			return fmt.Sprintf("`%s` – %s.\n\n%s", use, c.Short, rows), err
		},
		"transfer": func() (string, error) {
			return fieldRows(reflect.TypeFor[transferConfig](), map[string]string{
				"kv_connector": "needed", "kv_role": "needed", "kv_load_failure_policy": "`" + string(engine.PolicyFail) + "`",
				"engine_id": "random",
			})
		},
		"extra": func() (string, error) {
			d := connector.Defaults()
			return fieldRows(reflect.TypeFor[transferExtra](), map[string]string{
				"kv_lease_duration": seconds(d.LeaseDuration), "engine_ttl": seconds(d.PeerIdle), "handshake_timeout": seconds(d.HandshakeTimeout),
				"load_timeout": seconds(d.LoadTimeout), "no_progress_timeout": seconds(d.NoProgress), "num_threads": "`2`",
			})
		},
	}
	pages.Compare(t, "config.md", "testdata/config.md.tmpl", funcs, map[string]any{
		"Failed": exitFailed, "Forced": exitForced, "LastGrace": lastGrace,
	})
	var all func(c *cobra.Command)
	all = func(c *cobra.Command) {
		if path := strings.TrimPrefix(c.CommandPath(), "tandem "); c != root && !told[path] {
			t.Errorf("docs/config.md lacks tandem %s; testdata/config.md.tmpl is where it belongs", path)
		}
		for _, sub := range c.Commands() {
			all(sub)
		}
	}
	all(root)
	// Every variable that a default comes from is in the table of variables.
	var variables []string
	for _, c := range append(root.Commands(), root) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if v := fromEnvironment.FindStringSubmatch(f.Usage); v != nil && !slices.Contains(variables, v[1]) {
				variables = append(variables, v[1])
			}
		})
	}
	if !slices.Equal(variables, []string{"TANDEM_API_KEY"}) {
		t.Errorf("the template's table of variables lacks one of %q", variables)
	}
}

// The limits that the help of flags speaks of are refused where they are not met.
func TestFlagsOutOfRangeAreRefused(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel() // what is not refused stops at once
	for _, c := range []struct{ args, want string }{
		{"serve --sim --port 0 --stall-timeout 0", "--stall-timeout 0s: want at least 1ms"},
		{"serve --sim --port 0 --drain-timeout -1s", "--drain-timeout -1s: want at least 0s"},
		{"serve --sim --port 0 --max-num-seqs 0", "--max-num-seqs 0: want at least 1"},
		{"serve --sim --port 0 --threads 1025", "--threads 1025: want at most 1024"},
		{"route --port 0 --prefill http://h:1 --decode http://h:2 --retries -1", "--retries -1: want at least 0"},
		{"route --port 0 --prefill http://h:1 --decode http://h:2 --leg-timeout 0", "--leg-timeout 0s: want at least 1ms"},
		{"up --sim --port 0 --threads -1", "--threads -1: want at least 0"},
	} {
		root := rootCommand()
		root.SetArgs(strings.Fields(c.args))
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(ended); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("tandem %s: %v, want %q", c.args, err, c.want)
		}
	}
}
