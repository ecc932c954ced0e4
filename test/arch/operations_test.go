package arch

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	flagName   = regexp.MustCompile(`(^|[\s\x60'(])(--[a-z][a-z-]+)`)
	kvKey      = regexp.MustCompile(`["\x60]([a-z]+(?:_[a-z]+)+)["\x60]`)
	codeOrText = regexp.MustCompile("(?s)```.*?```|`[^`]+`")
)

// namedIn returns what a page written by hand says that must exist elsewhere:
// flags, keys of the transfer configuration, metrics, and lines of the log.
func namedIn(text string) (flags, keys, metrics, lines []string) {
	for _, code := range codeOrText.FindAllString(text, -1) {
		for _, m := range flagName.FindAllStringSubmatch(code, -1) {
			flags = append(flags, m[2])
		}
		for _, m := range kvKey.FindAllStringSubmatch(code, -1) {
			keys = append(keys, m[1])
		}
	}
	for _, m := range metricName.FindAllStringSubmatch(text, -1) {
		metrics = append(metrics, m[1])
	}
	in := false
	for line := range strings.Lines(text) {
		if in = strings.HasPrefix(line, "|") && (in || strings.HasPrefix(line, "| line |")); !in {
			continue
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range logLine.FindAllStringSubmatch(first, -1) {
			lines = append(lines, m[1])
		}
	}
	return flags, keys, metrics, lines
}

// docs/operations.md is written by hand; what it names is in the pages that are
// made from the code, and in the code.
func TestOperationsPageNamesWhatThereIs(t *testing.T) {
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(root(t), "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	config, metricPage, code := read("config.md"), read("metrics.md"), productCode(t)
	flags, keys, metrics, lines := namedIn(read("operations.md"))
	for _, f := range flags {
		if !strings.Contains(config, "| `"+f+"` |") {
			t.Errorf("docs/operations.md: no command has the flag %s", f)
		}
	}
	for _, k := range keys {
		if !strings.Contains(config+metricPage, "`"+k+"`") && !strings.Contains(code, `"`+k+`"`) {
			t.Errorf("docs/operations.md: nothing is called %s", k)
		}
	}
	for _, m := range metrics {
		if !strings.Contains(metricPage, "| `"+m+"` |") {
			t.Errorf("docs/operations.md: there is no metric %s", m)
		}
	}
	for _, l := range lines {
		if !strings.Contains(code, `"`+strings.TrimSuffix(l, "=")) {
			t.Errorf("docs/operations.md: nothing logs %q", l)
		}
	}
	if len(flags) < 15 || len(keys) < 5 || len(lines) < 10 {
		t.Errorf("read %d flags, %d keys and %d log lines", len(flags), len(keys), len(lines))
	}
}

// A reader of the page that sees nothing would pass for ever.
func TestOperationsPageCanFail(t *testing.T) {
	flags, keys, metrics, lines := namedIn("Use `--a-flag=3`, `tandem_x_total`\n```sh\nx --b-flag '{\"kv_role\":1}'\n```\nand --not-code\n\n| line | do |\n|---|---|\n| `it broke`, `n=` | `look` |\n\n| `no line` |\n")
	if !slices.Equal(flags, []string{"--a-flag", "--b-flag"}) || !slices.Equal(keys, []string{"tandem_x_total", "kv_role"}) ||
		!slices.Equal(metrics, []string{"tandem_x_total"}) || !slices.Equal(lines, []string{"it broke", "n="}) {
		t.Errorf("%q %q %q %q", flags, keys, metrics, lines)
	}
}
