package server

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"tandem/internal/chat"
	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/sim"
)

// A scripted model emits the given bytes, again and again.
type scripted struct {
	*sim.Model
	text string
	next int
}

func (s *scripted) Step(b *kv.Batch) ([][]float32, error) {
	rows, err := s.Model.Step(b)
	for _, r := range rows {
		clear(r)
		r[s.text[s.next%len(s.text)]] = 100
		s.next++
	}
	return rows, err
}

// H063: characters whose bytes are tokens of their own arrive whole.
func TestCharactersArriveWhole(t *testing.T) {
	var text strings.Builder
	for i := range 200 {
		switch i % 4 {
		case 0:
			text.WriteRune(rune(0x00e0 + i%80)) // two bytes
		case 1:
			text.WriteRune(rune(0x4e00 + i*37)) // three
		case 2:
			text.WriteRune(rune(0x1f300 + i)) // four
		default:
			text.WriteString("e\u0301") // a letter and its accent
		}
	}
	m, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{Model: m, text: text.String()}
	r := startModel(t, s, engine.Config{}, Config{})
	for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
		ask := []string{"prompt", `"x"`}
		if path != "/v1/completions" {
			ask = []string{"messages", `[{"role":"user","content":"x"}]`}
		}
		ask = append(ask, "temperature", "0", "max_tokens", fmt.Sprint(len(s.text)))
		events := r.post(path, object(append(ask, "stream", "true")...)).events(t)
		for i, e := range events {
			piece, _, _ := gather(t, []map[string]any{e})
			if p := piece[0]; p != nil && strings.ContainsRune(p.Text, '\ufffd') {
				t.Fatalf("%s: event %d has half a character: %q", path, i, p.Text)
			}
		}
		if got, _, _ := gather(t, events); got[0].Text != s.text || len(events) < 200 {
			t.Errorf("%s: %d events with %q, want %q", path, len(events), got[0].Text, s.text)
		}
		got, _, _ := gather(t, []map[string]any{r.post(path, object(ask...)).m})
		if got[0].Text != s.text {
			t.Errorf("%s: %q, want %q", path, got[0].Text, s.text)
		}
	}
}

// H037, H111: the limit of a request is the smaller one of context and pool,
// shown where clients look, enforced to the token, and the same however many
// requests may run at once. Who is refused delays nobody.
func TestShownLimitIsTheEnforcedOne(t *testing.T) {
	ids := func(n int) string { return "[" + strings.Repeat("65,", n-1) + "65]" }
	for _, c := range []struct {
		name  string
		model sim.Config
		cfg   engine.Config
		want  int
	}{
		{"the model's context", sim.Config{MaxLen: 100}, engine.Config{}, 100},
		{"the operator's context", sim.Config{}, engine.Config{MaxModelLen: 80, MaxSeqs: 1}, 80},
		{"the pool, one at a time", sim.Config{Blocks: 8}, engine.Config{MaxSeqs: 1}, 128},
		{"the pool, many at a time", sim.Config{Blocks: 8}, engine.Config{MaxSeqs: 64}, 128},
		{"the pool of large blocks", sim.Config{Blocks: 3, BlockTokens: 64}, engine.Config{}, 192},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.model.EOSEvery = -1
			r := start(t, c.model, c.cfg, Config{})
			list := r.do(http.MethodGet, "/v1/models", nil).m["data"].([]any)[0].(map[string]any)
			shown := []any{
				list["max_model_len"], r.do(http.MethodGet, "/v1/models/sim", nil).m["max_model_len"],
				r.post("/tokenize", `{"prompt":"x"}`).m["max_model_len"], r.do(http.MethodGet, "/server_info", nil).m["max_model_len"],
			}
			for i, v := range shown {
				if v != float64(c.want) {
					t.Errorf("place %d shows %v, want %d", i, v, c.want)
				}
			}
			got, usage, _ := gather(t, []map[string]any{r.post("/v1/completions", object("prompt", ids(c.want-1), "max_tokens", "100000")).m})
			if got[0].Finish != "length" || usage["completion_tokens"] != 1.0 {
				t.Errorf("one token below the limit: %+v %v", got[0], usage)
			}
			before := r.engine.Status().Stats.Prompt
			a := r.post("/v1/completions", object("prompt", ids(c.want)))
			if s := string(a.raw); a.status != http.StatusBadRequest || !strings.Contains(s, fmt.Sprintf("%d tokens, prompt", c.want)) || !strings.Contains(s, "context_length_exceeded") {
				t.Errorf("at the limit: %d %s", a.status, a.raw)
			}
			if n := r.engine.Status().Stats.Prompt; n != before {
				t.Errorf("%d tokens were computed for a refusal", n-before)
			}
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					if i%5 == 0 {
						r.post("/v1/completions", object("prompt", ids(c.want+1)))
						return
					}
					if a := r.post("/v1/completions", `{"prompt":"small","max_tokens":3}`); a.status != http.StatusOK {
						t.Errorf("beside the refused ones: %d %s", a.status, a.raw)
					}
				})
			}
			wg.Wait()
		})
	}
}

// H067: a template that writes the start token itself gives one, not two.
func TestTemplateWithItsOwnStartToken(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	bos := r.server.cfg.Tokenizer.Piece(sim.BOS)
	own, err := chat.Parse(`{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}`, chat.Specials{BOS: bos})
	if err != nil {
		t.Fatal(err)
	}
	r.server.cfg.Template = own // nobody has asked yet
	count := func(body string) (n int, first any) {
		ids := r.post("/tokenize", body).m["tokens"].([]any)
		for _, id := range ids {
			if id == float64(sim.BOS) {
				n++
			}
		}
		return n, ids[0]
	}
	const one = `"messages":[{"role":"user","content":"a"}]`
	for body, want := range map[string]int{
		"{" + one + "}": 1, "{" + one + `,"add_special_tokens":true}`: 1, "{" + one + `,"add_special_tokens":false}`: 1,
	} {
		if n, first := count(body); n != want || first != float64(sim.BOS) {
			t.Errorf("%s: %d start tokens, first id %v", body, n, first)
		}
	}
}

// H099: a tenant's salt keeps its prompts out of another's cache.
func TestCacheSalt(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	prompt := `"` + strings.Repeat("secret ", 20) + `"`
	for i, c := range []struct {
		salt string
		want float64
	}{{"null", 0}, {`"a"`, 0}, {`"b"`, 0}, {`"a"`, 128}, {`"b"`, 128}, {"null", 128}} {
		a := r.post("/v1/completions", object("prompt", prompt, "cache_salt", c.salt, "max_tokens", "1"))
		got := a.m["usage"].(map[string]any)["prompt_tokens_details"].(map[string]any)["cached_tokens"]
		if got != c.want {
			t.Errorf("request %d with salt %s: %v cached tokens, want %v", i, c.salt, got, c.want)
		}
	}
	if a := r.post("/v1/completions", object("prompt", prompt, "cache_salt", `""`)); a.status != http.StatusBadRequest || a.param() != "cache_salt" {
		t.Errorf("empty salt: %d %s", a.status, a.raw)
	}
}

// H068: what a template refuses is the client's to mend, in the template's
// words; what its messages lack is named.
func TestTemplateThatRaises(t *testing.T) {
	r := start(t, sim.Config{}, engine.Config{}, Config{})
	strict, err := chat.Parse(`{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must take turns') }}{% endif %}{{ m.content }}{% endfor %}`, chat.Specials{})
	if err != nil {
		t.Fatal(err)
	}
	r.server.cfg.Template = strict // nobody has asked yet
	const u, a = `{"role":"user","content":"a"}`, `{"role":"assistant","content":"b"}`
	for messages, want := range map[string]string{
		"[" + u + "]": "", "[" + u + "," + a + "," + u + "]": "",
		"[" + u + "," + u + "]": "roles must take turns", "[" + a + "]": "roles must take turns",
		"[]": "messages", `[{"content":"a"}]`: "messages[0].role", `[{"role":"user","content":7}]`: "messages[0].content",
		`[{"role":"user","content":[{"type":"image_url"}]}]`: "messages[0].content[0].type",
	} {
		for _, path := range []string{"/v1/chat/completions", "/tokenize"} {
			got := r.post(path, object("messages", messages, "max_tokens", "1"))
			if path == "/tokenize" && messages == "[]" {
				continue // an empty conversation has tokens of its own
			}
			if want == "" && got.status != http.StatusOK || want != "" && (got.status != http.StatusBadRequest || !strings.Contains(string(got.raw), want)) {
				t.Errorf("%s %s: %d %s, want %q", path, messages, got.status, got.raw, want)
			}
		}
	}
}
