package server

import (
	"tandem/internal/engine"
	"tandem/internal/kv"
	"tandem/internal/openai"
	"tandem/internal/sample"
	"tandem/internal/tokenizer"
)

// A piece is what a choice has gathered and nobody has taken.
type piece struct {
	text     string
	tokens   []kv.Token
	logprobs []sample.TokenLogprobs
	finish   engine.FinishReason // set in the last piece
	stop     openai.StopReason
}

// A choice turns the outputs of one choice into text. It is a pure value: the
// same tokens give the same text, however they are cut into outputs.
type choice struct {
	index     int
	dec       *tokenizer.Decoder
	scan      scanner
	minTokens int  // stop strings count after this many tokens
	discard   bool // tokens are wanted by nobody: echo of a prompt with max_tokens 0

	count int   // tokens so far
	over  bool  // finished: later outputs are dropped
	begun bool  // a piece was taken
	p     piece // not yet taken
	runes int   // characters taken, for text offsets
}

// push adds an output. It reports whether a stop string ended the choice while
// the engine goes on with it.
func (c *choice) push(out *engine.Output) bool {
	if c.over {
		return false
	}
	if c.discard {
		if out.Finish != "" {
			c.end(engine.FinishLength)
		}
		return false
	}
	for i, t := range out.Tokens {
		c.count++
		c.p.tokens = append(c.p.tokens, t)
		if i < len(out.Logprobs) {
			c.p.logprobs = append(c.p.logprobs, out.Logprobs[i])
		}
		ender := out.Finish == engine.FinishStop && i == len(out.Tokens)-1
		if ender && !c.scan.include {
			break // end and stop tokens are no text
		}
		if c.say(c.dec.Push(t)) {
			return out.Finish == ""
		}
	}
	if out.Finish == "" {
		return false
	}
	if c.say(c.dec.Flush()) {
		return false
	}
	c.p.text += c.scan.rest()
	c.p.stop.Token = out.StopToken
	c.end(out.Finish)
	return false
}

// say adds text and reports whether a stop string ended the choice.
func (c *choice) say(text string) bool {
	if c.count <= c.minTokens {
		c.p.text += text
		return false
	}
	out, hit := c.scan.push(text)
	c.p.text += out
	if hit == "" {
		return false
	}
	c.p.stop.Text = &hit
	c.end(engine.FinishStop)
	return true
}

func (c *choice) end(why engine.FinishReason) {
	c.over = true
	c.p.finish = why
}

// ready reports whether there is something that a stream should send: text, or
// the end.
func (c *choice) ready() bool { return c.p.text != "" || c.p.finish != "" }

// take returns what was gathered.
func (c *choice) take() piece {
	p := c.p
	c.p = piece{}
	return p
}
