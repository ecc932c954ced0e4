package openai

import "math"

// Limits that are checked while a request is parsed, before anything is built
// from it.
const (
	MaxBodyBytes      = 16 << 20      // of a request
	MaxChoices        = 128           // n
	MaxPrompts        = 256           // prompts of one completion request
	MaxStops          = 16            // stop strings
	MaxStopBytes      = 1024          // of one stop string
	MaxStopTokens     = 1024          // stop_token_ids
	MaxLogprobs       = 20            // logprobs, top_logprobs and prompt_logprobs
	MaxLogitBias      = 1024          // entries of logit_bias
	MaxMessages       = 4096          // of a conversation
	MaxContentParts   = 1024          // of one message
	MaxSaltBytes      = 1024          // cache_salt
	MaxPromptTokenIDs = 1 << 22       // ids of one prompt
	MaxMaxTokens      = math.MaxInt32 // max_tokens and min_tokens
)

// maxMembers bounds the members of a request object, known or not.
const maxMembers = 512
