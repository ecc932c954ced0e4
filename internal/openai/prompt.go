package openai

import (
	"encoding/json"
	"strconv"
)

// prompts reads the field prompt: a text, token ids, or a list of either.
func (f *fields) prompts() []Prompt {
	v := f.get("prompt")
	if v == nil {
		f.fail("prompt", "is missing")
		return nil
	}
	if s, ok := textOf(v); ok {
		return []Prompt{{Text: s}}
	}
	if v[0] != '[' {
		f.fail("prompt", "must be a string, a list of token ids, or a list of either")
		return nil
	}
	first := v[space(v, 1):]
	switch {
	case first[0] == ']':
		f.fail("prompt", "must not be an empty list")
	case isNumber(first):
		return []Prompt{{IDs: true, Tokens: f.tokens("prompt", v, MaxPromptTokenIDs)}}
	default:
		return f.promptList(v)
	}
	return nil
}

func (f *fields) promptList(v json.RawMessage) []Prompt {
	var out []Prompt
	each(v, func(i int, e json.RawMessage) bool {
		at := "prompt[" + strconv.Itoa(i) + "]"
		s, ok := textOf(e)
		switch {
		case i >= MaxPrompts:
			f.fail("prompt", "must have at most %d prompts", MaxPrompts)
		case ok:
			out = append(out, Prompt{Text: s})
		case e[0] == '[' && emptyList(e):
			f.fail(at, "must not be an empty list")
		case e[0] == '[':
			out = append(out, Prompt{IDs: true, Tokens: f.tokens(at, e, MaxPromptTokenIDs)})
		default:
			f.fail(at, "must be a string or a list of token ids")
		}
		return f.err == nil
	})
	return out
}

// conversation reads what a chat template needs.
func (f *fields) conversation() (messages []json.RawMessage, generate bool, args map[string]json.RawMessage) {
	v := f.get("messages")
	switch {
	case v == nil:
		f.fail("messages", "is missing")
	case v[0] != '[':
		f.fail("messages", "must be a list of messages")
	case emptyList(v):
		f.fail("messages", "must not be an empty list")
	default:
		messages = f.messages(v)
	}
	generate = f.flag("add_generation_prompt", true)
	if f.flag("continue_final_message", false) {
		f.fail("continue_final_message", "is not supported")
	}
	if o := f.object("chat_template_kwargs"); o != nil {
		if json.Unmarshal(o, &args) != nil {
			f.fail("chat_template_kwargs", "must be an object")
		}
	}
	if f.get("chat_template") != nil {
		f.fail("chat_template", "is not supported: the template of the model is used")
	}
	return messages, generate, args
}

func (f *fields) messages(v json.RawMessage) []json.RawMessage {
	var out []json.RawMessage
	each(v, func(i int, e json.RawMessage) bool {
		if i >= MaxMessages {
			f.fail("messages", "must have at most %d messages", MaxMessages)
			return false
		}
		if m := f.message("messages["+strconv.Itoa(i)+"]", e); m != nil {
			out = append(out, m)
		}
		return f.err == nil
	})
	return out
}

// message checks one message and joins its content parts with line feeds, as
// vLLM does for templates that take a string.
func (f *fields) message(at string, raw json.RawMessage) json.RawMessage {
	b, err := ParseBody(raw)
	if err != nil {
		f.fail(at, "must be an object")
		return nil
	}
	role, _ := b.Get("role")
	if s, ok := textOf(role); !ok || s == "" {
		f.fail(at+".role", "must be a string that is not empty")
		return nil
	}
	content, ok := b.Get("content")
	if !ok || string(content) == "null" {
		return raw
	}
	if _, ok := textOf(content); ok {
		return raw
	}
	if content[0] != '[' {
		f.fail(at+".content", "must be a string or a list of parts")
		return nil
	}
	joined, err := json.Marshal(f.parts(at+".content", content))
	if err != nil || f.err != nil {
		return nil
	}
	return b.Edit(Edit{Key: "content", Value: joined})
}

func (f *fields) parts(at string, array json.RawMessage) string {
	var out []byte
	each(array, func(i int, e json.RawMessage) bool {
		here := at + "[" + strconv.Itoa(i) + "]"
		if i >= MaxContentParts {
			f.fail(at, "must have at most %d parts", MaxContentParts)
			return false
		}
		if i > 0 {
			out = append(out, '\n')
		}
		if s, ok := textOf(e); ok {
			out = append(out, s...)
			return true
		}
		p, err := ParseBody(e)
		if err != nil {
			f.fail(here, "must be an object or a string")
			return false
		}
		kind, _ := p.Get("type")
		if s, _ := textOf(kind); s != "text" {
			f.fail(here+".type", "must be text: no other kind of content is supported")
			return false
		}
		value, _ := p.Get("text")
		s, ok := textOf(value)
		if !ok {
			f.fail(here+".text", "must be a string")
			return false
		}
		out = append(out, s...)
		return true
	})
	return string(out)
}

// A TokenizeRequest is the body of POST /tokenize: a text or a conversation.
type TokenizeRequest struct {
	Model               string
	Prompt              string
	Messages            []json.RawMessage // nil: Prompt counts
	AddGenerationPrompt bool
	TemplateArgs        map[string]json.RawMessage
	AddSpecial          bool // true when absent for a text, false for messages
	ParseSpecial        bool // true when absent
	ReturnTokenStrs     bool
}

// ParseTokenize reads a tokenize request.
func ParseTokenize(raw []byte) (*TokenizeRequest, *Error) {
	f, err := newFields(raw)
	if err != nil {
		return nil, err
	}
	r := &TokenizeRequest{}
	r.Model, _ = f.text("model")
	chat := f.get("messages") != nil
	if chat {
		r.Messages, r.AddGenerationPrompt, r.TemplateArgs = f.conversation()
	} else {
		var ok bool
		if r.Prompt, ok = f.text("prompt"); !ok {
			f.fail("prompt", "is missing")
		}
	}
	r.AddSpecial = f.flag("add_special_tokens", !chat)
	r.ParseSpecial = f.flag("parse_special", true)
	r.ReturnTokenStrs = f.flag("return_token_strs", false)
	return r, f.err
}

// A DetokenizeRequest is the body of POST /detokenize.
type DetokenizeRequest struct {
	Model  string
	Tokens []int32
}

// ParseDetokenize reads a detokenize request.
func ParseDetokenize(raw []byte) (*DetokenizeRequest, *Error) {
	f, err := newFields(raw)
	if err != nil {
		return nil, err
	}
	r := &DetokenizeRequest{}
	r.Model, _ = f.text("model")
	v := f.get("tokens")
	switch {
	case v == nil:
		f.fail("tokens", "is missing")
	case v[0] != '[':
		f.fail("tokens", "must be a list of token ids")
	default:
		r.Tokens = f.tokens("tokens", v, MaxPromptTokenIDs)
	}
	return r, f.err
}
