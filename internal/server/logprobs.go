package server

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"tandem/internal/kv"
	"tandem/internal/openai"
	"tandem/internal/sample"
)

// tokenText returns what log-probabilities call a token: its text, with
// replacement marks where it is part of a character, or "token_id:N".
func (c *call) tokenText(t kv.Token) string {
	if c.common.TokensAsIDs {
		return "token_id:" + strconv.Itoa(int(t))
	}
	return strings.ToValidUTF8(c.s.cfg.Tokenizer.Piece(t), "\uFFFD")
}

// floor keeps every number in an answer finite.
func floor(x float64) float64 {
	if x >= sample.LogprobFloor {
		return x
	}
	return sample.LogprobFloor // NaN too
}

// completionLogprobs returns the form of /v1/completions for list. A nil entry
// of list stands for a first prompt token, given by tokens. offset is the number
// of characters before them.
func (c *call) completionLogprobs(tokens []kv.Token, list []*sample.TokenLogprobs, top, offset int) *openai.CompletionLogprobs {
	out := &openai.CompletionLogprobs{
		TextOffset: []int{}, TokenLogprobs: []*openai.Logprob{}, Tokens: []string{}, TopLogprobs: []openai.LogprobOf{},
	}
	for i, t := range tokens {
		text := c.tokenText(t)
		out.TextOffset = append(out.TextOffset, offset)
		offset += utf8.RuneCountInString(text)
		out.Tokens = append(out.Tokens, text)
		l := list[i]
		if l == nil {
			out.TokenLogprobs = append(out.TokenLogprobs, nil)
			out.TopLogprobs = append(out.TopLogprobs, nil)
			continue
		}
		own := openai.Logprob(floor(l.Logprob.Logprob))
		out.TokenLogprobs = append(out.TokenLogprobs, &own)
		names := openai.LogprobOf{}
		for _, e := range ranked(l, top) {
			names = append(names, openai.NamedLogprob{Name: c.tokenText(e.Token), Logprob: floor(e.Logprob)})
		}
		out.TopLogprobs = append(out.TopLogprobs, names)
	}
	return out
}

// ranked returns the top alternatives of l, and its own token where it is not
// among them.
func ranked(l *sample.TokenLogprobs, top int) []sample.Logprob {
	list := l.Top[:min(top, len(l.Top))]
	for _, e := range list {
		if e.Token == l.Token {
			return list
		}
	}
	return append(list[:len(list):len(list)], l.Logprob)
}

func (c *call) chatLogprobs(list []sample.TokenLogprobs, top int) *openai.ChatLogprobs {
	out := &openai.ChatLogprobs{Content: make([]openai.ChatLogprob, len(list))}
	for i := range list {
		l := &list[i]
		e := openai.ChatLogprob{ChatTop: c.chatTop(l.Logprob), Top: []openai.ChatTop{}}
		for _, t := range l.Top[:min(top, len(l.Top))] {
			e.Top = append(e.Top, c.chatTop(t))
		}
		out.Content[i] = e
	}
	return out
}

func (c *call) chatTop(l sample.Logprob) openai.ChatTop {
	piece := c.s.cfg.Tokenizer.Piece(l.Token)
	bytes := make([]int, len(piece))
	for i := range len(piece) {
		bytes[i] = int(piece[i])
	}
	return openai.ChatTop{Token: c.tokenText(l.Token), Logprob: floor(l.Logprob), Bytes: bytes}
}

// promptLogprobs returns vLLM's form: null for the first token, then objects by
// token id.
func (c *call) promptLogprobs(j *job) openai.PromptLogprobs {
	if c.common.PromptLogprobs == nil || j.req.PromptLogprobs < 0 {
		return nil
	}
	out := openai.PromptLogprobs{nil}
	for i := range j.prompt {
		m := make(map[string]openai.PromptLogprob)
		for _, e := range ranked(&j.prompt[i], *c.common.PromptLogprobs) {
			m[strconv.Itoa(int(e.Token))] = openai.PromptLogprob{
				Logprob: floor(e.Logprob), Rank: e.Rank, Text: c.tokenText(e.Token),
			}
		}
		out = append(out, m)
	}
	return out
}
