package tokenizer

import (
	"unicode"
	"unicode/utf8"
)

// A splitter cuts text into the words inside which merges happen. It calls
// emit with consecutive parts of s that add up to s. Invalid UTF-8 counts byte
// by byte as neither space, letter nor number.
type splitter func(s string, emit func(word string))

// splitters returns the pre-tokenizer called name. Some names are other models'
// for the same rule.
func splitters(name string) (splitter, bool) {
	switch name {
	case "smollm", "starcoder", "refact", "command-r":
		return splitSmol, true
	case "gpt-2", "mpt":
		return splitGPT2, true
	case "default", "":
		return splitDefault, true
	}
	return nil, false
}

// A class is what the patterns tell apart.
type class uint8

const (
	other class = iota
	space
	letter
	number
	end // behind the text
)

// classAt returns the class and length of the character at s[i:].
func classAt(s string, i int) (class, int) {
	if i >= len(s) {
		return end, 0
	}
	if c := s[i]; c < utf8.RuneSelf {
		switch {
		case c|0x20 >= 'a' && c|0x20 <= 'z':
			return letter, 1
		case c >= '0' && c <= '9':
			return number, 1
		case c == ' ', c >= '\t' && c <= '\r':
			return space, 1
		}
		return other, 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	switch {
	case r == utf8.RuneError && n == 1:
		return other, 1
	case unicode.Is(unicode.L, r):
		return letter, n
	case unicode.Is(unicode.N, r):
		return number, n
	case unicode.IsSpace(r):
		return space, n
	}
	return other, n
}

// run returns the end of the run of characters of class c from i.
func run(s string, i int, c class) int {
	for {
		k, n := classAt(s, i)
		if k != c || n == 0 {
			return i
		}
		i += n
	}
}

// splitGPT2 follows the pattern
//
//	's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func splitGPT2(s string, emit func(word string)) {
	for i := 0; i < len(s); {
		j := i + contraction(s[i:])
		if j == i {
			j = gpt2Word(s, i)
		}
		emit(s[i:j])
		i = j
	}
}

// gpt2Word returns the end of the word at s[i:], which is no contraction.
func gpt2Word(s string, i int) int {
	k, n := classAt(s, i)
	if k != space {
		return run(s, i+n, k)
	}
	if s[i] == ' ' {
		if k2, n2 := classAt(s, i+1); k2 != space && k2 != end {
			return run(s, i+1+n2, k2)
		}
	}
	// Of several spaces before a word the last is left for the word, or for a
	// word of its own.
	j, last := i, i
	for {
		k, n := classAt(s, j)
		if k != space {
			if k == end || last == i {
				return j
			}
			return last
		}
		last = j
		j += n
	}
}

// contraction returns the length of an English contraction's tail at the start
// of s, or 0.
func contraction(s string) int {
	if len(s) < 2 || s[0] != '\'' {
		return 0
	}
	switch s[1] {
	case 's', 't', 'm', 'd':
		return 2
	}
	if len(s) > 2 {
		switch s[1:3] {
		case "re", "ve", "ll":
			return 3
		}
	}
	return 0
}

// splitSmol makes each number character a word; what lies between is split as
// by GPT-2, each stretch on its own.
func splitSmol(s string, emit func(word string)) {
	start := 0
	for i := 0; i < len(s); {
		k, n := classAt(s, i)
		if k == number {
			splitGPT2(s[start:i], emit)
			emit(s[i : i+n])
			start = i + n
		}
		i += n
	}
	splitGPT2(s[start:], emit)
}

// splitDefault is llama.cpp's rule for vocabularies that name no pre-tokenizer:
// runs of punctuation, then GPT-2, then numbers apart from their space, then
// ASCII digits in threes.
func splitDefault(s string, emit func(word string)) {
	start := 0
	rest := func(to int) { splitGPT2(s[start:to], func(w string) { splitNumbers(w, emit) }) }
	for i := 0; i < len(s); {
		n := punctAt(s, i)
		if n == 0 {
			_, n = classAt(s, i)
			i += n
			continue
		}
		rest(i)
		j := i + n
		for n = punctAt(s, j); n > 0; n = punctAt(s, j) {
			j += n
		}
		// The later patterns also cut a run of punctuation.
		splitGPT2(s[i:j], emit)
		start, i = j, j
	}
	rest(len(s))
}

// splitNumbers cuts the number runs out of a word, and those into threes.
func splitNumbers(s string, emit func(word string)) {
	start := 0
	for i := 0; i < len(s); {
		k, n := classAt(s, i)
		if k != number {
			i += n
			continue
		}
		if i > start {
			emit(s[start:i])
		}
		start = run(s, i, number)
		splitThrees(s[i:start], emit)
		i = start
	}
	if start < len(s) {
		emit(s[start:])
	}
}

// splitThrees cuts a run of number characters at each three ASCII digits in a
// row.
func splitThrees(s string, emit func(word string)) {
	start, digits := 0, 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			digits = 0
			continue
		}
		if digits++; digits == 3 {
			if i-2 > start {
				emit(s[start : i-2])
			}
			emit(s[i-2 : i+1])
			start, digits = i+1, 0
		}
	}
	if start < len(s) {
		emit(s[start:])
	}
}

// punctAt returns the length of the punctuation character at s[i:], or 0. The
// set is \p{P} and a few ASCII symbols.
func punctAt(s string, i int) int {
	if i >= len(s) {
		return 0
	}
	switch s[i] {
	case '$', '+', '<', '=', '>', '^', '~', '|':
		return 1
	}
	r, n := utf8.DecodeRuneInString(s[i:])
	if unicode.Is(unicode.P, r) {
		return n
	}
	return 0
}
