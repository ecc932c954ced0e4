package router

import (
	"net/http"
	"strconv"
	"strings"
)

// headerPolicy is the client's word on what happens when D cannot load the KV. It
// is D's to judge, and P never sees it.
const headerPolicy = "X-Kv-Load-Failure-Policy"

// headerFailure is an engine's: the class of a load that failed.
const headerFailure = "X-Kv-Load-Failure"

// decodeHeader returns the header of the decode leg.
func (c *call) decodeHeader() http.Header {
	if c.policy == nil {
		return c.header
	}
	h := c.header.Clone()
	h[headerPolicy] = c.policy
	return h
}

// transferHeader returns what an engine's answer says of where the KV came from.
func transferHeader(from http.Header) http.Header {
	h := http.Header{}
	for k, v := range from {
		if strings.HasPrefix(k, "X-Kv-") {
			h[k] = v
		}
	}
	return h
}

// sumHeaders adds up the counts of a list's answers: those that every answer has.
// Of several failures that of the first prompt is told.
func sumHeaders(all []http.Header) http.Header {
	sum := http.Header{}
	for k := range all[0] {
		total, whole := 0, true
		for _, h := range all {
			n, err := strconv.Atoi(h.Get(k))
			total, whole = total+n, whole && err == nil
		}
		if whole {
			sum.Set(k, strconv.Itoa(total))
		}
	}
	for _, h := range all {
		if v := h.Get(headerFailure); v != "" {
			sum.Set(headerFailure, v)
			break
		}
	}
	return sum
}
