package golden_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"tandem/internal/gguf"
	"tandem/internal/kv"
	"tandem/internal/model"
)

const modelName = "SmolLM2-135M-Instruct.Q4_1.gguf"

// A prompt is a line of greedy.jsonl: what llama.cpp answered.
type prompt struct {
	ID        string     `json:"id"`
	Text      string     `json:"text"`
	PromptIDs []kv.Token `json:"prompt_ids"`
	ContIDs   []kv.Token `json:"cont_ids"`
	EOGIndex  *int       `json:"eog_index"` // of the first end token in ContIDs

	Messages json.RawMessage `json:"messages"` // of a chat prompt
	Steps    [][]top         `json:"steps"`
	Margin   []float64       `json:"margin"`
}

// A truth is a line of truth.jsonl: the exact distribution at every step.
type truth struct {
	ID     string    `json:"id"`
	Steps  [][]top   `json:"steps"`
	Margin []float64 `json:"margin"`
	RefLP  []float64 `json:"ref_lp"`
	Top64  []struct {
		Step   int        `json:"step"`
		IDs    []kv.Token `json:"ids"`
		LP     []float64  `json:"lp"`
		RestLP float64    `json:"rest_lp"`
	} `json:"top64"`
}

// top is one of the likeliest tokens, [id, logprob] in the files.
type top struct {
	ID kv.Token
	LP float64
}

func (t *top) UnmarshalJSON(b []byte) error {
	var v [2]float64
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	t.ID, t.LP = kv.Token(v[0]), v[1]
	return nil
}

type perplexity struct {
	NLL   map[string]float64 `json:"nll"`
	IDs   []kv.Token         `json:"ids"`
	Chunk int                `json:"chunk"`
}

func goldenPath(name string) string { return filepath.Join("..", "..", "testdata", "golden", name) }

// readLines decodes a file of one JSON value a line.
func readLines[T any](t *testing.T, name string) (out []T) {
	t.Helper()
	f, err := os.Open(goldenPath(name))
	if err != nil {
		t.Fatalf("%v: the golden data is part of the repository", err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		var v T
		if err := json.Unmarshal(s.Bytes(), &v); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out = append(out, v)
	}
	if err := s.Err(); err != nil || len(out) == 0 {
		t.Fatalf("%s: %d lines, error %v", name, len(out), err)
	}
	return out
}

// prompts returns greedy.jsonl and truth.jsonl, line by line of one prompt.
func prompts(t *testing.T) ([]prompt, []truth) {
	t.Helper()
	g, x := readLines[prompt](t, "greedy.jsonl"), readLines[truth](t, "truth.jsonl")
	if len(g) != len(x) {
		t.Fatalf("%d prompts and %d truths", len(g), len(x))
	}
	for i := range g {
		if g[i].ID != x[i].ID || len(g[i].ContIDs) != len(x[i].Steps) {
			t.Fatalf("line %d: prompt %s does not match truth %s", i+1, g[i].ID, x[i].ID)
		}
	}
	return g, x
}

// load loads the model or fails the test with the remedy.
func load(t *testing.T, cfg model.Config) *model.Model {
	t.Helper()
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "tandem", modelName)
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatalf("%v\nthe golden tests need the model: run \"make model\"", err)
	}
	cfg.Threads, cfg.MaxLen = 2, 2048
	m, err := model.Load(f, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// forced feeds ids and calls f with the logits after each position from first
// on. The last rows come in steps of at most 64.
func forced(t *testing.T, m *model.Model, ids []kv.Token, first int, f func(pos int, logits []float32)) {
	t.Helper()
	const most = 64
	l := m.Arenas()[0].Layout()
	blocks := make([]kv.BlockID, (len(ids)+l.BlockTokens()-1)/l.BlockTokens())
	for i := range blocks {
		blocks[i] = kv.BlockID(i)
	}
	for pos := 0; pos < len(ids); {
		n := len(ids) - pos
		if pos < first {
			n = min(n, first-pos)
		} else {
			n = min(n, most)
		}
		want := 0
		if pos >= first {
			want = n
		}
		rows, err := m.Step(&kv.Batch{Seqs: []kv.Seq{{
			Tokens: ids[pos : pos+n], Pos: pos, WriteFrom: pos, Blocks: blocks, Logits: want,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range rows {
			f(pos+i, r)
		}
		pos += n
	}
}

// replay runs a prompt with its continuation given, f seeing step k's logits.
func replay(t *testing.T, m *model.Model, p *prompt, f func(k int, logits []float32)) {
	t.Helper()
	ids := append(append([]kv.Token{}, p.PromptIDs...), p.ContIDs[:len(p.ContIDs)-1]...)
	forced(t, m, ids, len(p.PromptIDs)-1, func(pos int, logits []float32) { f(pos-len(p.PromptIDs)+1, logits) })
}

func pct(n, of int) string {
	return fmt.Sprintf("%d of %d (%.2f %%)", n, of, 100*float64(n)/float64(of))
}
