package gguftest

// Ids of the control tokens that every synthetic vocabulary begins with.
const (
	EndOfText = 0 // <|endoftext|>
	ImStart   = 1 // <|im_start|>, the beginning-of-sequence token
	ImEnd     = 2 // <|im_end|>, the end-of-sequence token
	Marker    = 3 // <|marker|>, see Spec.EndAfterMarker

	firstByte = 4 // the 256 byte tokens follow the control tokens
)

// MinVocab is the smallest vocabulary: control tokens and all bytes.
const MinVocab = firstByte + 256

// ChatTemplate is the template of the synthetic models: ChatML.
const ChatTemplate = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"

// usualMerges are merges of English text, in an order in which every part
// exists before it is used. Ġ stands for a space.
var usualMerges = [][2]string{
	{"Ġ", "t"}, {"Ġ", "a"}, {"h", "e"}, {"i", "n"}, {"r", "e"}, {"o", "n"}, {"Ġt", "he"}, {"e", "r"},
	{"Ġ", "s"}, {"a", "t"}, {"Ġ", "w"}, {"Ġ", "o"}, {"e", "n"}, {"Ġ", "c"}, {"i", "t"}, {"i", "s"},
	{"a", "n"}, {"o", "r"}, {"e", "s"}, {"Ġ", "b"}, {"e", "d"}, {"Ġ", "f"}, {"in", "g"}, {"Ġ", "p"},
	{"o", "u"}, {"Ġa", "n"}, {"a", "l"}, {"a", "r"}, {"Ġt", "o"}, {"Ġ", "m"}, {"Ġo", "f"}, {"Ġ", "in"},
	{"Ġ", "d"}, {"Ġ", "h"}, {"Ġan", "d"}, {"i", "c"}, {"a", "s"}, {"l", "e"}, {"Ġt", "h"}, {"i", "on"},
	{"o", "m"}, {"l", "l"}, {"en", "t"}, {"Ġ", "n"}, {"Ġ", "l"}, {"s", "t"}, {"Ġ", "re"}, {"v", "e"},
	{"r", "o"}, {"l", "y"}, {"Ġb", "e"}, {"Ġ", "g"}, {"c", "t"}, {"i", "d"}, {"o", "t"}, {"Ġ", "is"},
}

// byteAlphabet returns the printable character of each byte in byte-level BPE.
func byteAlphabet() []string {
	out := make([]string, 256)
	extra := rune(256)
	for b := range out {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			out[b] = string(rune(b))
		} else {
			out[b] = string(extra)
			extra++
		}
	}
	return out
}

// vocabulary makes n tokens: control tokens, bytes, usual merges, then merges
// of any two bytes.
func vocabulary(n int) (tokens []string, types []int32, merges []string) {
	tokens = append(tokens, "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|marker|>")
	bytes := byteAlphabet()
	tokens = append(tokens, bytes...)
	seen := map[string]bool{}
	add := func(a, b string) {
		if len(tokens) < n && !seen[a+b] {
			seen[a+b] = true
			tokens = append(tokens, a+b)
			merges = append(merges, a+" "+b)
		}
	}
	for _, m := range usualMerges {
		add(m[0], m[1])
	}
	for _, a := range bytes {
		if len(tokens) == n {
			break
		}
		for _, b := range bytes {
			add(a, b)
		}
	}
	for len(tokens) < n {
		// Beyond all pairs: tokens without a merge, reachable by id only.
		tokens = append(tokens, "unused"+string(rune(0x10000+len(tokens))))
	}
	types = make([]int32, len(tokens))
	for i := range types {
		types[i] = 1 // normal
		if i < firstByte {
			types[i] = 3 // control
		}
	}
	return tokens, types, merges
}
