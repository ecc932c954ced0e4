package openai

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"
)

// An Error is the body of every answer that is not a success, in vLLM's form:
//
//	{"error":{"message":…,"type":…,"param":…,"code":400}}
//
// Message and Param never hold bytes of the request that were not checked.
type Error struct {
	Status int    // HTTP status, also the member "code"
	Type   string // such as BadRequestError
	Param  string // field at fault, "" for none

	// Message may be what is to be said of Param, such as "is missing": clients
	// that show messages alone get it with the field in front.
	Message string

	// Reason is a stable word for programs, "" for none. It is a member that
	// vLLM does not have.
	Reason string
}

// StatusClientGone is what logs, metrics and the answer say of a client that left
// before it had a status: one that closed only its own half may read on.
const StatusClientGone = 499

// ReasonContextLength marks a prompt that leaves no room for an answer.
const ReasonContextLength = "context_length_exceeded"

// Error returns the field and the message.
func (e *Error) Error() string { return "openai: " + e.Text() }

// Text returns the message so that it is complete without Param.
func (e *Error) Text() string {
	first, _ := utf8.DecodeRuneInString(e.Message)
	if e.Param == "" || unicode.IsUpper(first) || strings.HasPrefix(e.Message, e.Param) {
		return e.Message
	}
	return e.Param + ": " + e.Message
}

// MarshalJSON writes the whole error body.
func (e *Error) MarshalJSON() ([]byte, error) {
	type inner struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
		Reason  string  `json:"reason,omitempty"`
	}
	in := inner{Message: e.Text(), Type: e.Type, Code: e.Status, Reason: e.Reason}
	if e.Param != "" {
		in.Param = &e.Param
	}
	return json.Marshal(struct {
		Error inner `json:"error"`
	}{in})
}

// NewError returns an error of the given status with the type that vLLM uses
// for it.
func NewError(status int, param, format string, args ...any) *Error {
	return &Error{Status: status, Type: errorType(status), Param: param, Message: fmt.Sprintf(format, args...)}
}

// Bad returns a 400 that names the field at fault.
func Bad(param, format string, args ...any) *Error {
	return NewError(http.StatusBadRequest, param, format, args...)
}

func errorType(status int) string {
	switch status {
	case http.StatusBadRequest:
		return "BadRequestError"
	case http.StatusUnauthorized:
		return "AuthenticationError"
	case http.StatusNotFound:
		return "NotFoundError"
	case http.StatusMethodNotAllowed:
		return "MethodNotAllowedError"
	case http.StatusRequestEntityTooLarge:
		return "RequestTooLargeError"
	case http.StatusTooManyRequests:
		return "RateLimitError"
	case http.StatusServiceUnavailable:
		return "ServiceUnavailableError"
	case http.StatusNotImplemented:
		return "NotImplementedError"
	}
	if status >= 400 && status < 500 {
		return "BadRequestError"
	}
	return "InternalServerError"
}

// printable returns at most 40 characters of a field name for a message, or a
// stand-in when it holds anything but plain ASCII without separators of paths.
func printable(s string) string {
	if len(s) == 0 || len(s) > 40 || !utf8.ValidString(s) {
		return "(unprintable)"
	}
	for _, c := range s {
		if c < ' ' || c > '~' || c == '/' || c == '\\' {
			return "(unprintable)"
		}
	}
	return s
}
