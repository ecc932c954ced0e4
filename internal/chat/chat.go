// Package chat evaluates the chat template of a model file.
//
// It hides a Jinja evaluator with the settings that chat templates are written
// for (trim_blocks, lstrip_blocks, Hugging Face's tojson, raise_exception,
// strftime_now, generation blocks, loop controls). The server is its caller.
// Templates come from files nobody vouches for, so evaluation has limits on
// steps, output and nesting, reads nothing but its input, and what it does not
// know is an error of Parse that names the construct and its line: a prompt is
// never silently of another form than the template says.
//
// Every byte of the output knows where it came from, the template or the
// messages, through filters, slices and concatenation. The tokenizer makes
// control tokens from template bytes only, so that a message cannot forge a
// turn. What cannot be traced counts as content.
package chat

import (
	"fmt"
	"time"
)

// Limits on one rendering.
const (
	maxSource = 1 << 20  // bytes of a template
	maxSteps  = 8 << 20  // evaluated nodes and produced items; 64 bytes of text count as one
	maxText   = 32 << 20 // bytes of the output, and of any string on the way
	maxCalls  = 64       // macros within macros
)

// Specials are the texts of tokens that templates write, "" where the model
// has none.
type Specials struct{ BOS, EOS string }

// A Template is a parsed chat template. It is immutable and safe for
// concurrent use.
type Template struct {
	body     []node
	specials Specials
	uses     features
}

// A Part is a stretch of a rendered prompt.
type Part struct {
	Text    string
	Content bool // from the messages: never read for control tokens
}

// A ParseError says why a template cannot be used, and where.
type ParseError struct {
	Line int
	Err  error
}

// Error implements error.
func (e *ParseError) Error() string {
	return fmt.Sprintf("chat: parsing template: line %d: %v", e.Line, e.Err)
}

// Unwrap returns the cause.
func (e *ParseError) Unwrap() error { return e.Err }

// A RenderError says why a template could not be evaluated for its input. The
// input is at fault as far as anybody can tell: templates raise for messages
// that they do not take.
type RenderError struct {
	Line   int    // of the template
	Msg    string // what the template said, or what went wrong
	Raised bool   // the template itself raised it
}

// Error implements error.
func (e *RenderError) Error() string {
	if e.Raised {
		return "chat: the template refuses the messages: " + e.Msg
	}
	return fmt.Sprintf("chat: rendering template: line %d: %s", e.Line, e.Msg)
}

// Parse reads a template. An error is a *ParseError.
func Parse(src string, specials Specials) (*Template, error) {
	if len(src) > maxSource {
		return nil, &ParseError{Line: 1, Err: fmt.Errorf("template of %d bytes is longer than %d", len(src), maxSource)}
	}
	toks, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{toks: toks, bound: map[string]bool{}}
	body, _, err := p.body()
	if err != nil {
		return nil, err
	}
	for _, c := range p.calls {
		if !p.bound[c.name] && !isGlobal(c.name) && c.name != "caller" {
			return nil, &ParseError{Line: c.line, Err: fmt.Errorf("function %q is not supported", c.name)}
		}
	}
	return &Template{body: body, specials: specials, uses: p.uses}, nil
}

// Render evaluates the template. An error is an *InputError or a *RenderError.
func (t *Template) Render(in Input) ([]Part, error) {
	vars, err := t.context(in)
	if err != nil {
		return nil, err
	}
	now := in.Now
	if now.IsZero() {
		now = time.Unix(0, 0).UTC()
	}
	m := &machine{now: now, out: &textBuilder{}}
	m.scope = &scope{vars: vars}
	m.exec(t.body)
	if m.err != nil {
		return nil, m.err
	}
	out := m.out.text()
	parts := make([]Part, 0, len(out.runs))
	start := 0
	for _, r := range out.runs {
		parts = append(parts, Part{out.s[start:r.end], r.content})
		start = r.end
	}
	return parts, nil
}
