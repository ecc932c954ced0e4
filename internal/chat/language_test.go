package chat

import (
	"encoding/json"
	"testing"
)

// The expected texts are Jinja's.
func TestLanguage(t *testing.T) {
	vars := map[string]json.RawMessage{
		"d": json.RawMessage(`{"z": 1, "a": [true, null, 2.50, "q'"], "é": "<&>\u0001\"\\\n"}`),
		"l": json.RawMessage(`[{"n": "b", "k": 2}, {"n": "A", "k": 1}, {"n": "c"}]`),
		"s": json.RawMessage(`"Hello, wörld foo-bar"`),
	}
	for _, c := range []struct{ src, want string }{
		{"a\n", "a"},
		{"a\n\n", "a\n"},
		{"  {% if 1 %}\nx\n  {% endif %}\ny", "x\ny"},
		{"  {%+ if 1 %}\nx{% endif +%}\ny", "  x\ny"},
		{"a {%- if 1 -%} b {%- endif -%} c", "abc"},
		{"a {{- 1 -}} b", "a1b"},
		{"a\n  {# c #}\nb", "a\nb"},
		{"{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
		{"{{ 1 if false }}|{{ none }}|{{ nosuch }}|{{ true }}", "|None||True"},
		{"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ 1 + 2 * 3 }} {{ 1e20 }} {{ 0.1 + 0.2 }}",
			"3 -4 2 3.5 8 7 1e+20 0.30000000000000004"},
		{"{{ 1 ~ 2 + 3 }}", ""},
		{"{{ 'a' 'b' ~ '\\x41\\u00e9\\n' }}", "abAé\n"},
		{"{{ 1 < 2 < 3 }} {{ 1 in [1] }} {{ 3 not in [1] }} {{ not 1 == 2 }} {{ 'a' in 'cat' }}", "True True True True True"},
		{"{{ d | tojson }}", `{"z": 1, "a": [true, null, 2.5, "q'"], "é": "<&>\u0001\"\\\n"}`},
		{"{{ d.a | tojson(indent=2) }}", "[\n  true,\n  null,\n  2.5,\n  \"q'\"\n]"},
		{"{{ d | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}", `{"a":[true,null,2.5,"q'"],"z":1,"\u00e9":"<&>\u0001\"\\\n"}`},
		{"{{ d }}", `{'z': 1, 'a': [True, None, 2.5, "q'"], 'é': '<&>\x01"\\\n'}`},
		{"{% for k, v in d.items() %}{{ loop.index }}{{ k }}{% if not loop.last %},{% endif %}{% endfor %}", "1z,2a,3é"},
		{"{% for x in [1, 2, 3] if x != 2 %}{{ loop.revindex }}{{ x }}{{ loop.cycle('a', 'b') }}{% else %}e{% endfor %}", "21a13b"},
		{"{% for x in [] %}x{% else %}e{% endfor %}", "e"},
		{"{% for x in range(5) %}{% if x == 1 %}{% continue %}{% elif x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}", "02"},
		{"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{% endfor %}{{ x }}", "1"},
		{"{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 2 %}{% endfor %}{{ ns.x }}", "2"},
		{"{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21"},
		{"{% macro m(a, b='y') %}{{ a }}{{ b }}{{ caller() if caller is defined }}{% endmacro %}{{ m('x') }}{% call m(1, b=2) %}!{% endcall %}", "xy12!"},
		{"{% filter upper | trim %} a {% endfilter %}", "A"},
		{"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}", "3"},
		{"{% generation %}g{% endgeneration %}", "g"},
		{"{{ s | title }}|{{ s | capitalize }}|{{ s.title() }}|{{ s | length }}", "Hello, Wörld Foo-Bar|Hello, wörld foo-bar|Hello, Wörld Foo-Bar|20"},
		{"{{ s[1:4] }}{{ s[-3:] }}{{ s[::7] }}{{ s[8] }}", "ellbarHwoö"},
		{"{{ [1, 2, 3, 4][1:] }}{{ [1, 2, 3][::-1] }}{{ (1,) }}", "[2, 3, 4][3, 2, 1](1,)"},
		{"{{ l | map(attribute='n') | join(',') }} {{ l | selectattr('k') | list | length }} {{ l | rejectattr('k', 'defined') | map(attribute='n') | first }}", "b,A,c 2 c"},
		{"{{ l | map(attribute='n') | sort | join }} {{ l | map(attribute='k', default=0) | sum }} {{ ['a', 'B'] | map('upper') | list }}", "Abc 3 ['A', 'B']"},
		{"{{ [3, 1] | min }}{{ [3, 1] | max }}{{ [1, 1, 2] | unique | list }}{{ 'ab' | reverse }}{{ [1, 2] | last }}", "13[1, 2]ba2"},
		{"{{ d | dictsort | map('first') | join(',') }}", "a,z,é"},
		{"{{ x | default('u') }}{{ '' | default('e', true) }}{{ '3.7' | int }}{{ 'x' | int(5) }}{{ '2' | float }}{{ 2.5 | round }}{{ 3.14159 | round(2) }}", "ue352.02.03.14"},
		{"{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a' | indent(2, true) }}", "a\n  b\n\n  c|  a"},
		{"{{ ' xax '.strip().strip('x') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a b'.split() }}{{ 'a-b-c'.rsplit('-', 1) }}", "a['a', 'b,c']['a', 'b']['a-b', 'c']"},
		{"{{ 'abc'.startswith(('x', 'a')) }}{{ 'abc'.endswith('x') }}{{ 'abc'.find('c') }}{{ 'aXbX'.replace('X', '-', 1) }}", "TrueFalse2a-bX"},
		{"{{ 'a=b'.partition('=') }}{{ 'prefix'.removeprefix('pre') }}{{ '12'.isdigit() }}{{ 'a\nb'.splitlines() }}", "('a', '=', 'b')fixTrue['a', 'b']"},
		{"{{ d.get('q', 'w') }}{{ d.get('q') }}{{ d['z'] }}{{ d.a[0] }}{{ l[-1].n }}{{ d.values() | list | length }}", "wNone1Truec3"},
		{"{{ 1 is defined }}{{ q is defined }}{{ none is none }}{{ 'a' is string }}{{ d is mapping }}{{ l is iterable }}{{ 3 is odd }}{{ 4 is divisibleby 2 }}{{ 1 is not none }}", "TrueFalseTrueTrueTrueTrueTrueTrueTrue"},
		{"{{ 1 is eq 1 }}{{ 'x' is in ['x'] }}{{ true is true }}{{ 1 is sameas true }}{{ 1.0 is float }}{{ strftime_now is defined }}", "TrueTrueTrueFalseTrueTrue"},
		{"{{ strftime_now('%Y-%m-%d %-d %B %H:%M') }}", "2026-01-02 2 January 12:00"},
		{"{{ '<' | e }}{{ 'a' | safe }}{{ dict(a=1).a }}{{ {'x': 1, 'y': 2}.y }}{{ tools is none }}", "&lt;a12True"},
		{"{{ none | selectattr('x') | list }}{{ -3 | abs }}", "[]3"},
	} {
		tmpl := mustParse(t, c.src)
		parts, err := tmpl.Render(Input{Extra: vars, Now: noon})
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: got %q, want an error", c.src, Join(parts))
			}
			continue
		}
		if got := Join(parts); err != nil || got != c.want {
			t.Errorf("%s: %v\n got %q\nwant %q", c.src, err, got, c.want)
		}
	}
}

func FuzzTemplate(f *testing.F) {
	for _, s := range []string{
		"{% for m in messages %}{{ m.role + m.content|trim }}{% endfor %}",
		"{%- macro x(a, b=1) -%}{{ a[1:] ~ b }}{%- endmacro -%}{{ x('q') }}",
		"{% set ns = namespace(a=1) %}{{ ns.a is odd }}{{ messages|tojson(indent=2) }}",
		"{% raw %}{{{% endraw %}{# #}", "{{ 'a'.split('a')[::-1] }}", "{{ messages[0].content[::-1]|title|replace('a','b')|indent }}",
	} {
		f.Add(s, "hi <|im_end|> é")
	}
	f.Fuzz(func(t *testing.T, src, content string) {
		tmpl, err := Parse(src, Specials{BOS: "<s>", EOS: "</s>"})
		if err != nil {
			return
		}
		msgs := []Message{TextMessage("system", "s"), TextMessage("user", content)}
		a, errA := tmpl.Render(Input{Messages: msgs, Now: noon})
		b, errB := tmpl.Render(Input{Messages: msgs, Now: noon})
		if (errA == nil) != (errB == nil) || Join(a) != Join(b) {
			t.Errorf("two renderings differ: %v, %v", errA, errB)
		}
		for i, p := range a {
			if p.Text == "" || (i > 0 && p.Content == a[i-1].Content) {
				t.Errorf("part %d is empty or like the one before", i)
			}
		}
	})
}
