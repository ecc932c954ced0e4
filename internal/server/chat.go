package server

import (
	"errors"
	"net/http"
	"time"

	"tandem/internal/chat"
	"tandem/internal/engine"
	"tandem/internal/openai"
)

func (s *Server) chat(w http.ResponseWriter, q *http.Request) {
	s.generate(w, q, "chatcmpl-", func(c *call, raw []byte) error {
		r, bad := openai.ParseChat(raw)
		if bad != nil {
			return bad
		}
		c.common, c.form = &r.Common, &chatForm{r}
		return c.prepareChat(r)
	})
}

func (c *call) prepareChat(r *openai.ChatRequest) error {
	if err := c.s.named(r.Model); err != nil {
		return err
	}
	total := 0
	for _, m := range r.Messages {
		total += len(m)
	}
	if err := c.s.checkBytes("messages", total/8); err != nil { // JSON escapes are six times their character
		return err
	}
	tokens, err := c.s.render(chat.Input{
		Messages: r.Messages, AddGenerationPrompt: r.AddGenerationPrompt, Extra: r.TemplateArgs, Now: time.Now(),
	}, r.AddSpecial)
	if err != nil {
		return err
	}
	logprobs, prompt := -1, -1
	if r.Logprobs {
		logprobs = r.TopLogprobs
	}
	if r.PromptLogprobs != nil {
		prompt = *r.PromptLogprobs
	}
	c.job(tokens, params(&r.Sampling, 0, logprobs), prompt)
	return nil
}

// blame makes an error about a prompt one about messages.
func (f *chatForm) blame(err error) error {
	var bad *engine.InvalidError
	if errors.As(err, &bad) && bad.Field == "prompt" {
		e := *bad
		e.Field = "messages"
		return &e
	}
	return err
}

// A chatForm writes answers of /v1/chat/completions.
type chatForm struct{ r *openai.ChatRequest }

func (f *chatForm) envelope(c *call, object string) openai.Chat {
	return openai.Chat{
		ID: c.id, Object: object, Created: c.created, Model: c.s.cfg.ModelNames[0],
		Choices: []openai.ChatChoice{},
	}
}

const (
	objectChat  = "chat.completion"
	objectChunk = "chat.completion.chunk"
)

func (f *chatForm) open(c *call, j *job, ch *choice) any {
	out, empty := f.envelope(c, objectChunk), ""
	out.Choices = append(out.Choices, openai.ChatChoice{
		Index: ch.index, Delta: &openai.ChatDelta{Role: "assistant", Content: &empty},
	})
	if f.r.ReturnTokenIDs {
		out.PromptTokenIDs = j.req.Prompt
	}
	ch.begun = true
	return out
}

func (f *chatForm) event(c *call, j *job, ch *choice, p piece, u *openai.Usage) any {
	out := f.envelope(c, objectChunk)
	e := f.choice(c, ch, &p)
	e.Delta = &openai.ChatDelta{}
	if p.text != "" || p.finish == "" {
		e.Delta.Content = &p.text
	}
	out.Choices = append(out.Choices, e)
	out.Usage = u
	if p.finish != "" {
		out.KVTransferParams = j.params()
	}
	return out
}

func (f *chatForm) tail(c *call, u *openai.Usage) any {
	out := f.envelope(c, objectChunk)
	out.Usage = u
	return out
}

func (f *chatForm) body(c *call, u *openai.Usage) any {
	out := f.envelope(c, objectChat)
	j := c.jobs[0]
	for _, ch := range j.choices {
		p := ch.take()
		e := f.choice(c, ch, &p)
		e.Message = &openai.ChatMessage{Role: "assistant", Content: p.text}
		out.Choices = append(out.Choices, e)
	}
	if f.r.ReturnTokenIDs {
		out.PromptTokenIDs = j.req.Prompt
	}
	out.PromptLogprobs = c.promptLogprobs(j)
	out.Usage = u
	out.KVTransferParams = j.params()
	return out
}

func (f *chatForm) choice(c *call, ch *choice, p *piece) openai.ChatChoice {
	out := openai.ChatChoice{Index: ch.index, StopReason: p.stop}
	if p.finish != "" {
		why := string(p.finish)
		out.FinishReason = &why
	}
	if f.r.ReturnTokenIDs {
		out.TokenIDs = p.tokens
	}
	if f.r.Logprobs {
		out.Logprobs = c.chatLogprobs(p.logprobs, f.r.TopLogprobs)
	}
	return out
}
