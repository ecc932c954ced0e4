package chat

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A Message is one chat message as the client sent it: a JSON object with
// "role" and, mostly, "content". Its members reach the template in their order.
type Message = json.RawMessage

// Input is what a template renders.
type Input struct {
	Messages            []Message
	AddGenerationPrompt bool
	Tools               []json.RawMessage          // tool definitions; none: the template sees None
	Extra               map[string]json.RawMessage // further variables (chat_template_kwargs)
	Now                 time.Time                  // what strftime_now prints
}

// An InputError says which part of an Input cannot be rendered.
type InputError struct {
	Field string // such as messages[2].content
	Msg   string
}

// Error implements error.
func (e *InputError) Error() string { return "chat: reading " + e.Field + ": " + e.Msg }

// context returns the variables of a rendering.
func (t *Template) context(in Input) (map[string]any, error) {
	msgs := &list{}
	for i, raw := range in.Messages {
		m, err := t.message(raw, fmt.Sprintf("messages[%d]", i))
		if err != nil {
			return nil, err
		}
		msgs.items = append(msgs.items, m)
	}
	vars := map[string]any{"documents": nil, "tools": nil}
	if len(in.Tools) > 0 {
		tools := &list{}
		for i, raw := range in.Tools {
			v, err := decode(raw, fmt.Sprintf("tools[%d]", i))
			if err != nil {
				return nil, err
			}
			tools.items = append(tools.items, v)
		}
		vars["tools"] = tools
	}
	for k, raw := range in.Extra {
		v, err := decode(raw, "chat_template_kwargs."+k)
		if err != nil {
			return nil, err
		}
		vars[k] = v
	}
	vars["messages"] = msgs
	vars["add_generation_prompt"] = in.AddGenerationPrompt
	vars["bos_token"] = lit(t.specials.BOS)
	vars["eos_token"] = lit(t.specials.EOS)
	return vars, nil
}

// message decodes a message and brings it into the form that templates expect:
// a known role is as good as template text (templates build markers from it),
// content is what the template reads (a string, or parts), never null, and the
// arguments of tool calls are objects.
func (t *Template) message(raw Message, field string) (*dict, error) {
	v, err := decode(raw, field)
	if err != nil {
		return nil, err
	}
	m, ok := v.(*dict)
	if !ok {
		return nil, &InputError{field, "is not an object"}
	}
	role, ok := m.getString("role")
	name, isText := role.(text)
	if !ok || !isText {
		return nil, &InputError{field + ".role", "is not a string"}
	}
	if slices.Contains([]string{"system", "user", "assistant", "tool", "developer", "function"}, name.s) {
		m.set(lit("role"), lit(name.s))
	}
	content, _ := m.getString("content")
	switch c := content.(type) {
	case nil:
		if t.wantsParts() {
			content = &list{}
		} else {
			content = text{}
		}
	case text:
		if t.wantsParts() {
			part := &dict{}
			part.set(lit("type"), lit("text"))
			part.set(lit("text"), c)
			content = &list{items: []any{part}}
		}
	case *list:
		if content, err = t.parts(c, field+".content"); err != nil {
			return nil, err
		}
	default:
		return nil, &InputError{field + ".content", "is neither a string nor a list of parts"}
	}
	m.set(lit("content"), content)
	if calls, ok := m.getString("tool_calls"); ok {
		toolCalls(calls)
	}
	return m, nil
}

// wantsParts reports whether the template goes through the parts of content
// without asking whether there are any.
func (t *Template) wantsParts() bool { return t.uses.loopsContent && !t.uses.testsString }

// parts checks content parts, and joins their texts by newlines for a template
// that reads strings only.
func (t *Template) parts(l *list, field string) (any, error) {
	var b textBuilder
	for i, item := range l.items {
		at := fmt.Sprintf("%s[%d]", field, i)
		p, ok := item.(*dict)
		if !ok {
			return nil, &InputError{at, "is not an object"}
		}
		typ, _ := p.getString("type")
		if s, ok := typ.(text); !ok || s.s != "text" {
			return nil, &InputError{at + ".type", "only text parts are supported"}
		}
		s, _ := p.getString("text")
		txt, ok := s.(text)
		if !ok {
			return nil, &InputError{at + ".text", "is not a string"}
		}
		p.set(lit("type"), lit("text"))
		if i > 0 {
			b.addString("\n", true)
		}
		b.add(txt)
	}
	if t.uses.loopsContent {
		return l, nil
	}
	return b.text(), nil
}

// toolCalls replaces the arguments of calls, JSON in a string on the wire, by
// the object they describe; what is no object stays.
func toolCalls(calls any) {
	l, ok := calls.(*list)
	if !ok {
		return
	}
	for _, c := range l.items {
		call, ok := c.(*dict)
		if !ok {
			continue
		}
		f, _ := call.getString("function")
		fn, ok := f.(*dict)
		if !ok {
			continue
		}
		a, _ := fn.getString("arguments")
		s, ok := a.(text)
		if !ok {
			continue
		}
		if v, err := decode([]byte(s.s), ""); err == nil {
			if d, ok := v.(*dict); ok {
				fn.set(lit("arguments"), d)
			}
		}
	}
}

// decode reads one JSON value; all its strings are content.
func decode(raw []byte, field string) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	v, err := decodeValue(dec, 0)
	if err == nil {
		if _, end := dec.Token(); !errors.Is(end, io.EOF) {
			err = errors.New("more than one JSON value")
		}
	}
	if err != nil {
		return nil, &InputError{field, err.Error()}
	}
	return v, nil
}

// maxJSON bounds how deep JSON input nests.
const maxJSON = 60

func decodeValue(dec *json.Decoder, depth int) (any, error) {
	if depth > maxJSON {
		return nil, fmt.Errorf("nested more than %d deep", maxJSON)
	}
	tok, err := dec.Token()
	if err != nil {
		return nil, errors.New("is not valid JSON")
	}
	switch tok := tok.(type) {
	case json.Delim:
		if tok == '[' {
			l := &list{}
			for dec.More() {
				v, err := decodeValue(dec, depth+1)
				if err != nil {
					return nil, err
				}
				l.items = append(l.items, v)
			}
			return l, closed(dec)
		}
		d := &dict{}
		for dec.More() {
			k, err := dec.Token()
			if err != nil {
				return nil, errors.New("is not valid JSON")
			}
			v, err := decodeValue(dec, depth+1)
			if err != nil {
				return nil, err
			}
			d.set(foreign(k.(string)), v)
		}
		return d, closed(dec)
	case json.Number:
		return jsonNumber(tok)
	case string:
		return foreign(tok), nil
	case bool:
		return tok, nil
	}
	return nil, nil
}

// closed reads the end of an array or object.
func closed(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return errors.New("is not valid JSON")
	}
	return nil
}

func jsonNumber(n json.Number) (any, error) {
	if !strings.ContainsAny(n.String(), ".eE") {
		if i, err := n.Int64(); err == nil {
			return i, nil
		}
	}
	f, err := n.Float64()
	if err != nil {
		return nil, errors.New("number is out of range")
	}
	return f, nil
}
