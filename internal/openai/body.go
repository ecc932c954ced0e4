package openai

import (
	"errors"
	"io"
	"net/http"
)

// ReadBody returns the body of a request, at most limit bytes.
func ReadBody(w http.ResponseWriter, q *http.Request, limit int64) ([]byte, *Error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, q.Body, limit))
	if err == nil {
		return raw, nil
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, NewError(http.StatusRequestEntityTooLarge, "", "the body has more than %d bytes", limit)
	}
	return nil, Bad("", "the body could not be read to its end")
}
