package openai

import (
	"encoding/json"
	"testing"
)

func TestMessagesAreCompleteWithoutTheirField(t *testing.T) {
	for _, c := range []struct{ param, message, want string }{
		{"", "the body is empty", "the body is empty"},
		{"messages", "is missing", "messages: is missing"},
		{"stop[3]", "must be a string", "stop[3]: must be a string"},
		{"prompt", "This model's maximum context length is 8", "This model's maximum context length is 8"},
		{"n", "n is too large", "n is too large"},
	} {
		e := Bad(c.param, "%s", c.message)
		raw, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		var b struct {
			Error struct {
				Message string `json:"message"`
				Param   string `json:"param"`
			} `json:"error"`
		}
		if err := json.Unmarshal(raw, &b); err != nil || b.Error.Message != c.want || b.Error.Param != c.param {
			t.Errorf("%s: %v", raw, err)
		}
		if e.Error() != "openai: "+c.want {
			t.Errorf("logged as %q", e.Error())
		}
	}
	for body, want := range map[string]string{
		"[]": "the body is not a JSON object", "": "the body is empty: a JSON object is needed", `{}`: "messages: is missing",
		`{"messages":[{"role":"user","content":"a"}],"temperature":-1}`:                                   "temperature: must be a number of at least 0",
		`{"messages":[{"role":"user","content":"a"}],"top_p":2}`:                                          "top_p: must be a number in [0, 1]",
		`{"messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":1}}`: "stream_options.include_usage: must be true or false",
	} {
		if _, err := ParseChat([]byte(body)); err == nil || err.Text() != want {
			t.Errorf("%s: %v, want %s", body, err, want)
		}
	}
}
