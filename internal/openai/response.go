package openai

import (
	"encoding/json"
	"strconv"
)

// A Usage counts tokens. KVTransfer is not in OpenAI's schema.
type Usage struct {
	PromptTokens     int            `json:"prompt_tokens"`
	TotalTokens      int            `json:"total_tokens"`
	CompletionTokens int            `json:"completion_tokens"`
	Details          *PromptDetails `json:"prompt_tokens_details,omitempty"`
	KVTransfer       *KVTransfer    `json:"kv_transfer,omitempty"`
}

// A KVTransfer says where the KV of the prompt came from: the last four numbers
// add up to Prompt. Failure is why a load failed, "" when none did.
type KVTransfer struct {
	Prompt     int    `json:"prompt_tokens"`
	Loaded     int    `json:"loaded_tokens"`     // read from another engine and verified
	Local      int    `json:"local_tokens"`      // in the prefix cache here
	Recomputed int    `json:"recomputed_tokens"` // promised by another engine, computed here
	Computed   int    `json:"computed_tokens"`   // all others
	Failure    string `json:"failure,omitempty"`
}

// PromptDetails are OpenAI's part of what KVTransfer says.
type PromptDetails struct {
	Cached int `json:"cached_tokens"` // not computed here: prefix hits and loads
}

// A Completion is the answer of /v1/completions, whole or one chunk.
type Completion struct {
	ID      string             `json:"id"`
	Object  string             `json:"object"` // text_completion
	Created int64              `json:"created"`
	Model   string             `json:"model"`
	Choices []CompletionChoice `json:"choices"`
	Usage   *Usage             `json:"usage,omitempty"`

	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// A CompletionChoice is one text, or the next piece of it.
type CompletionChoice struct {
	Index          int                 `json:"index"`
	Text           string              `json:"text"`
	Logprobs       *CompletionLogprobs `json:"logprobs"`
	FinishReason   *string             `json:"finish_reason"`
	StopReason     StopReason          `json:"stop_reason"`
	TokenIDs       []int32             `json:"token_ids,omitempty"`
	PromptTokenIDs []int32             `json:"prompt_token_ids,omitempty"`
	PromptLogprobs PromptLogprobs      `json:"prompt_logprobs,omitempty"`
}

// CompletionLogprobs are log-probabilities in the form of /v1/completions. The
// entries of a first prompt token are null.
type CompletionLogprobs struct {
	TextOffset    []int       `json:"text_offset"`    // in characters
	TokenLogprobs []*Logprob  `json:"token_logprobs"` // null: a first prompt token
	Tokens        []string    `json:"tokens"`
	TopLogprobs   []LogprobOf `json:"top_logprobs"`
}

// A Logprob is a finite log-probability.
type Logprob float64

// A LogprobOf maps token texts to log-probabilities, best first; of two tokens
// with one text the better one is kept.
type LogprobOf []NamedLogprob

// A NamedLogprob is one entry of a LogprobOf.
type NamedLogprob struct {
	Name    string
	Logprob float64
}

// MarshalJSON writes an object in the order of l, or null for nil.
func (l LogprobOf) MarshalJSON() ([]byte, error) {
	if l == nil {
		return []byte("null"), nil
	}
	out := []byte{'{'}
	seen := make(map[string]bool, len(l))
	for _, e := range l {
		if seen[e.Name] {
			continue
		}
		seen[e.Name] = true
		if len(out) > 1 {
			out = append(out, ',')
		}
		key, err := json.Marshal(e.Name)
		if err != nil {
			return nil, err
		}
		out = strconv.AppendFloat(append(append(out, key...), ':'), e.Logprob, 'g', -1, 64)
	}
	return append(out, '}'), nil
}

// A StopReason is what ended a choice with "stop": a stop string, a stop token
// id, or null for the end token.
type StopReason struct {
	Text  *string
	Token *int32
}

// MarshalJSON writes a string, an integer or null.
func (s StopReason) MarshalJSON() ([]byte, error) {
	switch {
	case s.Text != nil:
		return json.Marshal(*s.Text)
	case s.Token != nil:
		return json.Marshal(*s.Token)
	}
	return []byte("null"), nil
}

// PromptLogprobs are vLLM's prompt_logprobs: null for the first prompt token,
// then an object by token id.
type PromptLogprobs []map[string]PromptLogprob

// A PromptLogprob is one token's value at a prompt position.
type PromptLogprob struct {
	Logprob float64 `json:"logprob"`
	Rank    int     `json:"rank"`
	Text    string  `json:"decoded_token"`
}

// A Chat is the answer of /v1/chat/completions, whole or one chunk.
type Chat struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"` // chat.completion or chat.completion.chunk
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []ChatChoice `json:"choices"`
	Usage   *Usage       `json:"usage,omitempty"`

	PromptTokenIDs   []int32         `json:"prompt_token_ids,omitempty"`
	PromptLogprobs   PromptLogprobs  `json:"prompt_logprobs,omitempty"`
	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// A ChatChoice has a Message in a whole answer and a Delta in a chunk.
type ChatChoice struct {
	Index        int           `json:"index"`
	Message      *ChatMessage  `json:"message,omitempty"`
	Delta        *ChatDelta    `json:"delta,omitempty"`
	Logprobs     *ChatLogprobs `json:"logprobs"`
	FinishReason *string       `json:"finish_reason"`
	StopReason   StopReason    `json:"stop_reason"`
	TokenIDs     []int32       `json:"token_ids,omitempty"`
}

// A ChatMessage is the answer of the model.
type ChatMessage struct {
	Role    string  `json:"role"`
	Content string  `json:"content"`
	Refusal *string `json:"refusal"`
}

// A ChatDelta is the next piece of a message; Role is set in the first.
type ChatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}

// ChatLogprobs are log-probabilities in the form of chat completions.
type ChatLogprobs struct {
	Content []ChatLogprob `json:"content"`
}

// A ChatLogprob is one token of an answer with its alternatives.
type ChatLogprob struct {
	ChatTop
	Top []ChatTop `json:"top_logprobs"`
}

// A ChatTop is a token with its log-probability and its bytes as integers.
type ChatTop struct {
	Token   string  `json:"token"`
	Logprob float64 `json:"logprob"`
	Bytes   []int   `json:"bytes"`
}

// A Model is an entry of /v1/models.
type Model struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"` // model
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"`
	MaxModelLen int     `json:"max_model_len"`
}

// A ModelList is the answer of /v1/models.
type ModelList struct {
	Object string  `json:"object"` // list
	Data   []Model `json:"data"`
}

// A Tokenized is the answer of /tokenize.
type Tokenized struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

// A Detokenized is the answer of /detokenize.
type Detokenized struct {
	Prompt string `json:"prompt"`
}
