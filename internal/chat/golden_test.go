package chat_test

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tandem/internal/chat"
	"tandem/internal/gguf"
	"tandem/internal/tokenizer"
)

func TestGoldenChat(t *testing.T) {
	dir, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	f, err := gguf.Open(filepath.Join(dir, "tandem", "SmolLM2-135M-Instruct.Q4_1.gguf"))
	if err != nil {
		t.Fatalf("the default model is missing, run \"make model\": %v", err)
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		t.Fatal(err)
	}
	src, err := f.String("tokenizer.chat_template")
	if err != nil {
		t.Fatal(err)
	}
	tmpl, err := chat.Parse(src, chat.Specials{BOS: "<|im_start|>", EOS: "<|im_end|>"})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join("..", "..", "testdata", "golden", "chat.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sc := bufio.NewScanner(file)
	sc.Buffer(nil, 1<<24)
	n := 0
	for ; sc.Scan(); n++ {
		var l struct {
			ID                  string
			Messages            []chat.Message
			AddGenerationPrompt bool `json:"add_generation_prompt"`
			Text                string
			IDs                 []int32
		}
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		parts, err := tmpl.Render(chat.Input{Messages: l.Messages, AddGenerationPrompt: l.AddGenerationPrompt})
		if l.Text == "" && err != nil {
			t.Errorf("%s: %v", l.ID, err)
			continue
		}
		if got := chat.Join(parts); got != l.Text || err != nil {
			t.Errorf("%s: %v\n got %q\nwant %q", l.ID, err, got, l.Text)
			continue
		}
		var tp []tokenizer.Part
		for _, p := range parts {
			tp = append(tp, tokenizer.Part{Text: p.Text, Special: !p.Content})
		}
		if got := tok.EncodeParts(tp); !slices.Equal(got, l.IDs) {
			t.Errorf("%s:\n got %v\nwant %v", l.ID, got, l.IDs)
		}
	}
	if n != 48 {
		t.Errorf("%d lines, not 48", n)
	}
}
