package golden_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"

	"tandem/test/cluster"
)

// Rule G: greedy decoding through the server. Outputs equal llama.cpp's until a
// step at which the truth itself is undecided, and the compared prefix is long.
func TestGreedyThroughTheServer(t *testing.T) {
	g, x := prompts(t)
	e := cluster.Start(t, "engine", "serve", cluster.Model(t), "--port", "0").Ready(t)
	got := make([][]int32, len(g))
	errs := make([]error, len(g))
	var wg sync.WaitGroup
	for i := range g {
		wg.Go(func() { got[i], errs[i] = greedy(e.URL, &g[i]) })
	}
	wg.Wait()
	same, total, whole := 0, 0, 0
	for i := range g {
		if errs[i] != nil {
			t.Errorf("%s: %v", g[i].ID, errs[i])
			continue
		}
		want := g[i].ContIDs
		if end := g[i].EOGIndex; end != nil {
			want = want[:*end+1]
		}
		total += len(want)
		k := 0
		for k < len(want) && k < len(got[i]) && got[i][k] == want[k] {
			k++
		}
		same += k
		switch {
		case k == len(want):
			whole++
		case k == len(got[i]) && k > 0:
			t.Errorf("%s: ends after %d tokens, want %d", g[i].ID, k, len(want))
		case x[i].Margin[k] >= sureMargin:
			t.Errorf("%s: token %d is %d, want %d; the truth is sure of it by %.2f", g[i].ID, k, got[i][k], want[k], x[i].Margin[k])
		}
	}
	t.Logf("%d of %d outputs equal llama.cpp's to the end; %d of %d tokens before the first difference", whole, len(g), same, total)
	if whole*4 < len(g) {
		t.Errorf("only %d of %d outputs were compared to their end", whole, len(g))
	}
}

func greedy(url string, p *prompt) ([]int32, error) {
	path := "/v1/completions"
	body := map[string]any{"max_tokens": len(p.ContIDs), "temperature": 0, "return_token_ids": true}
	if p.Messages != nil {
		path = "/v1/chat/completions"
		body["messages"] = p.Messages
	} else {
		body["prompt"], body["parse_special"] = p.Text, false
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	resp, err := http.Post(url+path, "application/json", bytes.NewReader(raw))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var a struct {
		Choices []struct {
			IDs []int32 `json:"token_ids"`
		}
		Error json.RawMessage
	}
	if err := json.Unmarshal(out, &a); err != nil || len(a.Choices) != 1 {
		return nil, fmt.Errorf("%s: %s", resp.Status, out)
	}
	return a.Choices[0].IDs, nil
}
