package tokenizer

// A trie finds the longest of a set of texts at a place. Its zero value is
// empty.
type trie struct {
	first [256]int32 // node of a text's first byte, 0: none
	nodes []trieNode // 0 is not used
}

type trieNode struct {
	b              byte
	id             int32 // the text that ends here, or none
	child, sibling int32
}

// add puts text into the set; an empty text is ignored. Of two equal texts the
// last has it.
func (t *trie) add(text string, id int32) {
	if text == "" {
		return
	}
	if t.nodes == nil {
		t.nodes = make([]trieNode, 1, 256)
	}
	at := t.first[text[0]]
	if at == 0 {
		at = t.node(text[0])
		t.first[text[0]] = at
	}
	for i := 1; i < len(text); i++ {
		c := t.step(at, text[i])
		if c == 0 {
			c = t.node(text[i])
			t.nodes[c].sibling = t.nodes[at].child
			t.nodes[at].child = c
		}
		at = c
	}
	t.nodes[at].id = id
}

func (t *trie) node(b byte) int32 {
	t.nodes = append(t.nodes, trieNode{b: b, id: none})
	return int32(len(t.nodes) - 1)
}

// step returns the child of node at for byte b, or 0.
func (t *trie) step(at int32, b byte) int32 {
	c := t.nodes[at].child
	for c != 0 && t.nodes[c].b != b {
		c = t.nodes[c].sibling
	}
	return c
}

// longest returns the longest text of the set with which s begins, as id and
// length.
func (t *trie) longest(s string) (id int32, n int) {
	id = none
	at := t.first[s[0]]
	for i := 1; at != 0; i++ {
		if t.nodes[at].id != none {
			id, n = t.nodes[at].id, i
		}
		if i >= len(s) {
			break
		}
		at = t.step(at, s[i])
	}
	return id, n
}
