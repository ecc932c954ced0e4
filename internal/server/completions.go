package server

import (
	"fmt"
	"net/http"
	"unicode/utf8"

	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/openai"
	"tandem/internal/sample"
	"tandem/internal/tokenizer"
)

// defaultMaxTokens is what a completion without max_tokens gets, as in vLLM.
const defaultMaxTokens = 16

func (s *Server) completions(w http.ResponseWriter, q *http.Request) {
	s.generate(w, q, "cmpl-", func(c *call, raw []byte) error {
		r, bad := openai.ParseCompletion(raw)
		if bad != nil {
			return bad
		}
		c.common, c.form = &r.Common, &completionForm{r}
		return c.prepareCompletion(r)
	})
}

func (c *call) prepareCompletion(r *openai.CompletionRequest) error {
	if err := c.s.named(r.Model); err != nil {
		return err
	}
	if len(r.Prompts)*r.N > maxChoices {
		return openai.Bad("n", "prompts times n must be at most %d", maxChoices)
	}
	logprobs, prompt := -1, -1
	if r.Logprobs != nil {
		logprobs = *r.Logprobs
		if r.Echo {
			prompt = logprobs
		}
	}
	if r.PromptLogprobs != nil {
		prompt = max(prompt, *r.PromptLogprobs)
	}
	p := params(&r.Sampling, defaultMaxTokens, logprobs)
	nothing := p.MaxTokens == 0
	if nothing {
		p.MaxTokens = 1
	}
	for i := range r.Prompts {
		at := "prompt"
		if len(r.Prompts) > 1 {
			at = fmt.Sprintf("prompt[%d]", i)
		}
		tokens, err := c.encode(at, &r.Prompts[i], r)
		if err != nil {
			return err
		}
		j := c.job(tokens, p, prompt)
		if r.Echo {
			j.text = r.Prompts[i].Text
			if r.Prompts[i].IDs {
				j.text = c.s.cfg.Tokenizer.DecodeText(tokens, !r.SkipSpecial)
			}
		}
		for _, ch := range j.choices {
			ch.discard = nothing
		}
	}
	return nil
}

// encode returns the token ids of a prompt, checked against the vocabulary.
func (c *call) encode(at string, p *openai.Prompt, r *openai.CompletionRequest) ([]kv.Token, error) {
	if p.IDs {
		return p.Tokens, c.s.checkIDs(at, p.Tokens)
	}
	if err := c.s.checkBytes(at, len(p.Text)); err != nil {
		return nil, err
	}
	return c.s.cfg.Tokenizer.Encode(p.Text, tokenizer.EncodeOptions{AddSpecial: r.AddSpecial, ParseSpecial: r.ParseSpecial}), nil
}

// checkIDs names the first id that is not in the vocabulary.
func (s *Server) checkIDs(at string, ids []int32) error {
	vocab := s.cfg.Engine.Info().Vocab
	for i, t := range ids {
		if t < 0 || int(t) >= vocab {
			return openai.Bad(fmt.Sprintf("%s[%d]", at, i), "token id %d is not in [0, %d)", t, vocab)
		}
	}
	return nil
}

// checkBytes refuses text that no tokenisation makes short enough, before the
// work of encoding it.
func (s *Server) checkBytes(at string, n int) error {
	limit := s.cfg.Engine.Limit()
	if least := n / s.widest; least > limit {
		return &engine.InvalidError{Field: at, Limit: limit, Length: least, Msg: "too long"}
	}
	return nil
}

// A completionForm writes answers of /v1/completions.
type completionForm struct{ r *openai.CompletionRequest }

func (f *completionForm) envelope(c *call) openai.Completion {
	return openai.Completion{
		ID: c.id, Object: "text_completion", Created: c.created, Model: c.s.cfg.ModelNames[0],
		Choices: []openai.CompletionChoice{},
	}
}

func (f *completionForm) blame(err error) error { return err }

func (f *completionForm) open(*call, *job, *choice) any { return nil }

func (f *completionForm) event(c *call, j *job, ch *choice, p piece, u *openai.Usage) any {
	out := f.envelope(c)
	out.Choices = append(out.Choices, f.choice(c, j, ch, &p))
	out.Usage = u
	if p.finish != "" {
		out.KVTransferParams = j.params()
	}
	return out
}

func (f *completionForm) tail(c *call, u *openai.Usage) any {
	out := f.envelope(c)
	out.Usage = u
	return out
}

func (f *completionForm) body(c *call, u *openai.Usage) any {
	out := f.envelope(c)
	for _, j := range c.jobs {
		for _, ch := range j.choices {
			p := ch.take()
			out.Choices = append(out.Choices, f.choice(c, j, ch, &p))
		}
	}
	out.Usage = u
	out.KVTransferParams = c.jobs[0].params()
	return out
}

// choice returns a piece; the first of a choice carries the echo.
func (f *completionForm) choice(c *call, j *job, ch *choice, p *piece) openai.CompletionChoice {
	out := openai.CompletionChoice{Index: j.index*f.r.N + ch.index, Text: p.text, StopReason: p.stop}
	if p.finish != "" {
		why := string(p.finish)
		out.FinishReason = &why
	}
	var tokens []kv.Token
	var list []*sample.TokenLogprobs
	if !ch.begun {
		out.Text = j.text + p.text
		if f.r.Echo && j.req.PromptLogprobs >= 0 {
			tokens, list = append(tokens, j.req.Prompt...), append(list, nil)
			for i := range j.prompt {
				list = append(list, &j.prompt[i])
			}
		}
		if f.r.ReturnTokenIDs {
			out.PromptTokenIDs = j.req.Prompt
		}
		out.PromptLogprobs = c.promptLogprobs(j)
	}
	if f.r.ReturnTokenIDs {
		out.TokenIDs = p.tokens
	}
	if f.r.Logprobs == nil {
		return out
	}
	for i := range p.logprobs {
		tokens, list = append(tokens, p.tokens[i]), append(list, &p.logprobs[i])
	}
	out.Logprobs = c.completionLogprobs(tokens, list, *f.r.Logprobs, ch.runes)
	for _, t := range out.Logprobs.Tokens {
		ch.runes += utf8.RuneCountInString(t)
	}
	return out
}
