package tokenizer

import "strings"

// EncodeOptions say what Encode may add and recognise.
type EncodeOptions struct {
	AddSpecial   bool // begin with BOS where the model wants it
	ParseSpecial bool // let the text of control tokens become those tokens
}

// A Part is a stretch of a prompt.
type Part struct {
	Text    string
	Special bool // the text of control tokens becomes those tokens
}

// Encode returns the token ids of text. User-defined tokens are found whatever
// the options say.
func (t *Tokenizer) Encode(text string, opt EncodeOptions) []int32 {
	return t.encode(text, []span{{len(text), opt.ParseSpecial}}, opt.AddSpecial)
}

// EncodeParts returns the token ids of a prompt made of parts, with BOS where
// the model wants it. Words and merges run across the borders of parts, so
// only control tokens make the ids differ from those of the joined text: a
// control token arises only from text that lies wholly in special parts.
func (t *Tokenizer) EncodeParts(parts []Part) []int32 {
	var text strings.Builder
	var spans []span
	for _, p := range parts {
		if p.Text == "" {
			continue
		}
		text.WriteString(p.Text)
		if n := len(spans); n > 0 && spans[n-1].special == p.Special {
			spans[n-1].end = text.Len()
		} else {
			spans = append(spans, span{text.Len(), p.Special})
		}
	}
	return t.encode(text.String(), spans, true)
}

// A span ends at a byte of the text; it begins where the one before ends.
type span struct {
	end     int
	special bool
}

// encode cuts out the special tokens, each within its spans, and encodes the
// text between them.
func (t *Tokenizer) encode(text string, spans []span, addSpecial bool) []int32 {
	out := make([]int32, 0, 1+len(text)/3)
	if addSpecial && t.addBOS {
		out = append(out, t.bos)
	}
	var w work
	start, i := 0, 0
	for _, sp := range spans {
		for i < sp.end {
			id, n := none, 0
			if sp.special {
				id, n = t.special.longest(text[i:sp.end])
			} else if len(t.user.nodes) > 0 {
				id, n = t.user.longest(text[i:sp.end])
			}
			if id == none {
				i++
				continue
			}
			out = t.appendText(out, text[start:i], &w)
			// A prompt that spells the start token itself gets no second one.
			if again := id == t.bos && addSpecial && len(out) == 1 && out[0] == t.bos; !again {
				out = append(out, id)
			}
			i += n
			start = i
		}
	}
	return t.appendText(out, text[start:], &w)
}

// appendText appends the tokens of text that holds no special tokens.
func (t *Tokenizer) appendText(out []int32, text string, w *work) []int32 {
	if text == "" {
		return out
	}
	t.pre(text, func(word string) { out = t.merges.appendWord(out, word, w) })
	return out
}
