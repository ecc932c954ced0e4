package server

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// cut is the reference: the text up to the moment when a stop string is
// complete for the first time.
func cut(text string, stops []string, include bool) string {
	for end := 1; end <= len(text); end++ {
		best := ""
		for _, s := range stops {
			if strings.HasSuffix(text[:end], s) && len(s) > len(best) {
				best = s
			}
		}
		if best != "" {
			if include {
				return text[:end]
			}
			return text[:end-len(best)]
		}
	}
	return text
}

func TestStopStringsAreCutWhereverTheTextIsCut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab]{1,5}`)
		stops := rapid.SliceOfN(word, 0, 4).Draw(t, "stops")
		pieces := rapid.SliceOfN(rapid.StringMatching(`[abc]{0,4}`), 0, 12).Draw(t, "pieces")
		include := rapid.Bool().Draw(t, "include")
		s, got, hit := scanner{stops: stops, include: include}, "", ""
		want := cut(strings.Join(pieces, ""), stops, include)
		for _, p := range pieces {
			var out string
			out, hit = s.push(p)
			got += out
			if !strings.HasPrefix(want, got) {
				t.Fatalf("%q sent, which is no part of %q", got, want)
			}
			if hit != "" {
				break
			}
		}
		if hit == "" {
			got += s.rest()
		}
		if got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}
