package chat

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

func mustParse(tb testing.TB, src string) *Template {
	tb.Helper()
	tmpl, err := Parse(src, Specials{BOS: "<s>", EOS: "</s>"})
	if err != nil {
		tb.Fatal(err)
	}
	return tmpl
}

// The expected prompts are Jinja's own, in Hugging Face's settings, for
// messages in the form that this package brings them into.
func TestStoredPrompts(t *testing.T) {
	file, err := os.Open(filepath.Join("testdata", "prompts.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	n := 0
	for sc := bufio.NewScanner(file); sc.Scan(); n++ {
		var c struct {
			Template, Name string
			Messages       []Message
			Tools          []json.RawMessage
			Want, Raises   string
		}
		if err := json.Unmarshal(sc.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		t.Run(c.Template+"/"+c.Name, func(t *testing.T) {
			src, err := os.ReadFile(filepath.Join("testdata", c.Template+".jinja"))
			if err != nil {
				t.Fatal(err)
			}
			parts, err := mustParse(t, string(src)).Render(Input{
				Messages: c.Messages, Tools: c.Tools, AddGenerationPrompt: true, Now: noon,
			})
			if c.Raises != "" {
				var raised *RenderError
				if !errors.As(err, &raised) || !raised.Raised || raised.Msg != c.Raises {
					t.Fatalf("got %v, want the template to raise %q", err, c.Raises)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := Join(parts); got != c.Want {
				t.Errorf("\n got %q\nwant %q", got, c.Want)
			}
			for _, p := range parts {
				if p.Text == "" {
					t.Errorf("empty part")
				}
			}
		})
	}
	if n != 48 {
		t.Errorf("%d prompts, not 12 lists for 4 templates", n)
	}
}

// contentOf renders x with one user message and returns the bytes marked as
// content in brackets.
func contentOf(t *testing.T, x string) string {
	t.Helper()
	parts, err := mustParse(t, x).Render(Input{Messages: []Message{TextMessage("user", " <A> b\nc ")}})
	if err != nil {
		t.Fatalf("%s: %v", x, err)
	}
	var b strings.Builder
	for _, p := range parts {
		if p.Content {
			b.WriteString("[" + p.Text + "]")
		} else {
			b.WriteString(p.Text)
		}
	}
	return b.String()
}

func TestOriginOfBytesSurvivesOperations(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"{% set c = messages[0].content %}<t>{{ c }}<t>", "<t>[ <A> b\nc ]<t>"},
		{"{% set c = messages[0].content %}{{ '<t>' + c|trim + '<t>' }}", "<t>[<A> b\nc]<t>"},
		{"{% set c = messages[0].content %}{{ ('<t>' ~ c ~ '<t>')|upper }}", "<T>[ <A> B\nC ]<T>"},
		{"{% set c = messages[0].content %}{{ ('<t>' ~ c)[1:6] }}", "t>[ <A]"},
		{"{% set c = messages[0].content %}{{ ('<t>' ~ c)[::-1] }}", "[ c\nb >A< ]>t<"},
		{"{% set c = messages[0].content %}{{ c.replace('A', '<x>') }}", "[ <]<x>[> b\nc ]"},
		{"{% set c = messages[0].content %}{{ '<x>y'.replace('y', c) }}", "<x>[ <A> b\nc ]"},
		{"{% set c = messages[0].content %}{{ c.split()|join('<j>') }}", "[<A>]<j>[b]<j>[c]"},
		{"{% set c = messages[0].content %}{{ c|indent(2) }}", "[ <A> b\n]  [c ]"},
		{"{% set c = messages[0].content %}{{ ('<t>' ~ c)|tojson }}", `["<t> <A> b\nc "]`},
		{"{% set c = messages[0].content %}{{ [c, '<t>'] }}", `[[' <A> b\nc ', '<t>']]`},
		{"{% set c = messages[0].content %}{{ c * 2 }}", "[ <A> b\nc  <A> b\nc ]"},
		{"{% macro m(x) %}<m>{{ x }}</m>{% endmacro %}{{ m(messages[0].content|trim) }}", "<m>[<A> b\nc]</m>"},
		{"{% set x %}<s>{{ messages[0].content }}</s>{% endset %}{{ x|trim }}", "<s>[ <A> b\nc ]</s>"},
		{"{% filter title %}<s>{{ messages[0].content }}{% endfilter %}", "<S>[ <A> B\nC ]"},
		{"{% for ch in messages[0].content[:3] %}{{ ch }}.{% endfor %}", "[ ].[<].[A]."},
		{"{{ messages[0].keys()|list|last }}", "[content]"},
		{"{{ '<|' + messages[0].role + '|>' }}", "<|user|>"},
		{"{{ 7 }}<{{ true }}>", "[7]<[True]>"},
		{"{{ bos_token }}{{ eos_token }}", "<s></s>"},
	} {
		if got := contentOf(t, c.src); got != c.want {
			t.Errorf("%s\n got %q\nwant %q", c.src, got, c.want)
		}
	}
}

func TestUnsupportedConstructsAreErrorsOfParse(t *testing.T) {
	for _, c := range []struct {
		src, want string
		line      int
	}{
		{"a\n{% include 'x' %}", `statement "include"`, 2},
		{"{% block a %}{% endblock %}", `statement "block"`, 1},
		{"\n\n{{ x | urlize }}", `filter "urlize"`, 3},
		{"{{ x is divisible }}", `"divisible" is not supported`, 1},
		{"{{ foo(1) }}", `function "foo"`, 1},
		{"{{ x.append(1) }}", `method "append"`, 1},
		{"{% for x in y recursive %}{% endfor %}", "recursive", 1},
		{"{% break %}", "outside a loop", 1},
		{"{% if x %}", "endif is missing", 1},
		{"{{ x ", "not closed", 1},
		{"{# x", "not closed", 1},
		{"{% raw %}x", "not closed", 1},
		{"{{ 'x }}", "not closed", 1},
		{"{{ (1 }}", `unexpected "}"`, 1},
		{"{{ 1) }}", `unexpected ")"`, 1},
		{"{{ $ }}", "unexpected character", 1},
		{"{{ }}", "unexpected }}", 1},
		{"{{ 99999999999999999999 }}", "out of range", 1},
		{"{{ f(*x) }}", "not supported", 1},
		{"{{ " + strings.Repeat("(", 500) + strings.Repeat(")", 500) + " }}", "deep", 1},
		{"{{ " + strings.Repeat("-", 500) + "1 }}", "deep", 1},
		{strings.Repeat("{% if x %}", 500), "deep", 1},
	} {
		_, err := Parse(c.src, Specials{})
		var pe *ParseError
		if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) || pe.Line != c.line {
			t.Errorf("%.60q: got %v, want line %d: %s", c.src, err, c.line, c.want)
		}
	}
}

func TestLimitsEndARendering(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps"},
		{"{{ 'x' * 1000000000 }}", "bytes"},
		{"{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "bytes"},
		{"{% for i in range(200) %}{{ 'x' * 1000000 }}{% endfor %}", "bytes"},
		{"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "deep"},
		{"{{ 2 ** 100 }}", "out of range"},
		{"{{ range(10 ** 15) }}", "in range"},
		{"{{ ('x' * 100000).replace('', 'y' * 10000) }}", "bytes"},
		{"{{ 1 // 0 }}", "zero"},
		{"{{ x.y.z }}", "undefined"},
		{"{{ 'a' + 1 }}", "string + integer"},
		{"{{ nosuch + 'a' }}", "'nosuch' is undefined"},
		{"{{ raise_exception('stop') }}{{ 1 / 0 }}", "stop"},
		{"{{ namespace }}", "has no text"},
	} {
		tmpl := mustParse(t, c.src)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := tmpl.Render(Input{})
		runtime.ReadMemStats(&after)
		var re *RenderError
		if !errors.As(err, &re) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.src, err, c.want)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 128*maxSteps { // all of it, not at one time
			t.Errorf("%s: allocated %d MiB", c.src, n>>20)
		}
	}
}

func TestInputsThatCannotBeRendered(t *testing.T) {
	tmpl := mustParse(t, "{% for m in messages %}{{ m.content }}{% endfor %}")
	for _, c := range []struct{ msg, want string }{
		{`"x"`, "messages[0]: is not an object"},
		{`{"content":"x"}`, "messages[0].role"},
		{`{"role":1}`, "messages[0].role"},
		{`{"role":"user","content":1}`, "messages[0].content"},
		{`{"role":"user","content":[{"type":"image_url"}]}`, "messages[0].content[0].type"},
		{`{"role":"user","content":[{"type":"text"}]}`, "messages[0].content[0].text"},
		{`{"role":"user"`, "not valid JSON"},
		{`{"role":"user","x":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "deep"},
	} {
		_, err := tmpl.Render(Input{Messages: []Message{Message(c.msg)}})
		var ie *InputError
		if !errors.As(err, &ie) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.msg, err, c.want)
		}
	}
}

// Join returns the whole text of parts.
func Join(parts []Part) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// TextMessage makes a message with a role and a string as content.
func TextMessage(role, content string) Message {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(struct { // strings always encode
		Role    string `json:"role"`
		Content string `json:"content"`
	}{role, content})
	return bytes.TrimSpace(b.Bytes())
}
