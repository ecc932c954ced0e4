package server

import "strings"

// A scanner finds stop strings in text that comes in pieces. It holds back what
// could be the beginning of one. The match is the one that is complete first;
// of several that end together, the longest. So it does not matter where the
// pieces were cut.
type scanner struct {
	stops   []string
	include bool // the stop string stays in the text
	held    string
}

// push adds text and returns what is certain to stay, and the stop string that
// ends the text, or "".
func (s *scanner) push(text string) (out, hit string) {
	if text == "" {
		return "", ""
	}
	if len(s.stops) == 0 {
		return text, ""
	}
	all := s.held + text
	start, end := -1, len(all)+1
	for _, stop := range s.stops {
		i := strings.Index(all, stop)
		if i < 0 {
			continue
		}
		if e := i + len(stop); e < end || e == end && i < start {
			start, end, hit = i, e, stop
		}
	}
	if hit != "" {
		s.held = ""
		if s.include {
			return all[:end], hit
		}
		return all[:start], hit
	}
	keep := 0
	for _, stop := range s.stops {
		keep = max(keep, overlap(all, stop))
	}
	s.held = all[len(all)-keep:]
	return all[:len(all)-keep], ""
}

// rest returns what was held back: no stop string can be completed any more.
func (s *scanner) rest() string {
	out := s.held
	s.held = ""
	return out
}

// overlap returns the length of the longest end of text that is a beginning of
// stop, shorter than stop.
func overlap(text, stop string) int {
	for n := min(len(text), len(stop)-1); n > 0; n-- {
		if text[len(text)-n:] == stop[:n] {
			return n
		}
	}
	return 0
}
