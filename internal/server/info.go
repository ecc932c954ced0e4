package server

import (
	"maps"
	"net/http"
	"time"

	"tandem/internal/chat"
	"tandem/internal/connector"
	"tandem/internal/openai"
	"tandem/internal/tokenizer"
)

func (s *Server) card(name string) openai.Model {
	return openai.Model{
		ID: name, Object: "model", Created: s.started.Unix(), OwnedBy: "tandem",
		Root: name, MaxModelLen: s.cfg.Engine.Limit(),
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	list := openai.ModelList{Object: "list", Data: []openai.Model{}}
	for _, n := range s.cfg.ModelNames {
		list.Data = append(list.Data, s.card(n))
	}
	_ = s.write(w, http.StatusOK, list) // the client may have gone
}

func (s *Server) model(w http.ResponseWriter, id string) {
	if id == "" || s.named(id) != nil {
		s.fail(w, openai.NewError(http.StatusNotFound, "model", "the model does not exist here; GET /v1/models lists what does"))
		return
	}
	_ = s.write(w, http.StatusOK, s.card(id)) // the client may have gone
}

func (s *Server) tokenize(w http.ResponseWriter, q *http.Request) {
	ids, strs, err := s.doTokenize(w, q)
	if err != nil {
		s.fail(w, err)
		return
	}
	_ = s.write(w, http.StatusOK, openai.Tokenized{ // the client may have gone
		Count: len(ids), MaxModelLen: s.cfg.Engine.Limit(), Tokens: ids, TokenStrs: strs,
	})
}

func (s *Server) doTokenize(w http.ResponseWriter, q *http.Request) (ids []int32, strs []string, err error) {
	raw, err := read(w, q)
	if err != nil {
		return nil, nil, err
	}
	r, bad := openai.ParseTokenize(raw)
	if bad != nil {
		return nil, nil, bad
	}
	if err := s.named(r.Model); err != nil {
		return nil, nil, err
	}
	if r.Messages != nil {
		ids, err = s.render(chat.Input{
			Messages: r.Messages, AddGenerationPrompt: r.AddGenerationPrompt, Extra: r.TemplateArgs, Now: time.Now(),
		}, r.AddSpecial)
		if err != nil {
			return nil, nil, err
		}
	} else {
		ids = s.cfg.Tokenizer.Encode(r.Prompt, tokenizer.EncodeOptions{AddSpecial: r.AddSpecial, ParseSpecial: r.ParseSpecial})
	}
	if ids == nil {
		ids = []int32{}
	}
	if r.ReturnTokenStrs {
		strs = make([]string, len(ids))
		for i, id := range ids {
			strs[i] = s.cfg.Tokenizer.Text(id)
		}
	}
	return ids, strs, nil
}

// render turns a conversation into token ids. Only what the template itself
// wrote may become control tokens.
func (s *Server) render(in chat.Input, addSpecial bool) ([]int32, error) {
	if s.cfg.Template == nil {
		return nil, openai.Bad("messages", "this model has no chat template; use /v1/completions")
	}
	parts, err := s.cfg.Template.Render(in)
	if err != nil {
		return nil, err
	}
	list := make([]tokenizer.Part, len(parts))
	for i, p := range parts {
		list[i] = tokenizer.Part{Text: p.Text, Special: !p.Content}
	}
	ids := s.cfg.Tokenizer.EncodeParts(list)
	if bos, ok := s.cfg.Tokenizer.BOS(); addSpecial && ok && (len(ids) == 0 || ids[0] != bos) {
		ids = append([]int32{bos}, ids...)
	}
	return ids, nil
}

func (s *Server) detokenize(w http.ResponseWriter, q *http.Request) {
	text, err := s.doDetokenize(w, q)
	if err != nil {
		s.fail(w, err)
		return
	}
	_ = s.write(w, http.StatusOK, openai.Detokenized{Prompt: text}) // the client may have gone
}

func (s *Server) doDetokenize(w http.ResponseWriter, q *http.Request) (string, error) {
	raw, err := read(w, q)
	if err != nil {
		return "", err
	}
	r, bad := openai.ParseDetokenize(raw)
	if bad != nil {
		return "", bad
	}
	if err := s.named(r.Model); err != nil {
		return "", err
	}
	if err := s.checkIDs("tokens", r.Tokens); err != nil {
		return "", err
	}
	return s.cfg.Tokenizer.DecodeText(r.Tokens, true), nil
}

// release ends the lease of a hand-off whose reader was never reached. The MAC
// of the hand-off is the authority, so no key is asked for.
func (s *Server) release(w http.ResponseWriter, q *http.Request) {
	raw, err := read(w, q)
	switch {
	case err != nil:
	case s.cfg.Connector == nil:
		err = openai.Bad(fieldParams, "this engine has no KV connector")
	default:
		var h *connector.Handoff
		if h, err = connector.ParseHandoff(raw); err == nil && h == nil {
			err = openai.Bad(fieldParams, "the body is no hand-off")
		}
		if err == nil {
			err = s.cfg.Connector.ReleaseByHandoff(raw)
		}
	}
	if err != nil {
		s.fail(w, err)
		return
	}
	_ = s.write(w, http.StatusOK, map[string]bool{"released": true}) // the client may have gone
}

// health says whether the engine lives: it has not ended, and its loop does not
// hang. The answer costs nothing, wakes nothing and is not logged: the engine has
// said what is wrong, and who probes asks once a second.
func (s *Server) health(w http.ResponseWriter, _ *http.Request) {
	st := s.cfg.Engine.Status()
	switch {
	case s.cfg.Engine.Err() != nil || st.Dead != "":
		s.answerError(w, openai.NewError(http.StatusServiceUnavailable, "", "the engine has ended with an error"))
		return
	case st.Hung:
		s.answerError(w, openai.NewError(http.StatusServiceUnavailable, "", "the engine has made no progress for %.0f s", st.Stalled.Seconds()))
		return
	}
	w.WriteHeader(http.StatusOK)
}

// ready says whether new requests are served.
func (s *Server) ready(w http.ResponseWriter, q *http.Request) {
	if s.draining.Load() || s.cfg.Engine.Status().Draining {
		s.answerError(w, openai.NewError(http.StatusServiceUnavailable, "", "the engine is shutting down"))
		return
	}
	s.health(w, q)
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	_ = s.write(w, http.StatusOK, map[string]string{"version": s.cfg.Version}) // the client may have gone
}

func (s *Server) serverInfo(w http.ResponseWriter, _ *http.Request) {
	info, st := s.cfg.Engine.Info(), s.cfg.Engine.Status()
	out := map[string]any{
		"version": s.cfg.Version, "model": s.cfg.ModelNames[0], "max_model_len": s.cfg.Engine.Limit(),
		"tensor_parallel_size": info.TP, "block_size": st.BlockTokens, "kernel": info.Kernel,
		"requests": st.Live, "max_num_seqs": st.MaxSeqs, "draining": st.Draining || s.draining.Load(),
		"started": s.started.Unix(), "scheduler": st.Stats, "stalled_seconds": st.Stalled.Seconds(),
	}
	if s.cfg.Info != nil {
		maps.Copy(out, s.cfg.Info())
	}
	_ = s.write(w, http.StatusOK, out) // the client may have gone
}

func (s *Server) modelInfo(w http.ResponseWriter, _ *http.Request) {
	info := s.cfg.Engine.Info()
	_ = s.write(w, http.StatusOK, map[string]any{ // the client may have gone
		"model_path": s.cfg.ModelNames[0], "served_model_name": s.cfg.ModelNames[0], "is_generation": true,
		"max_model_len": s.cfg.Engine.Limit(), "vocab_size": info.Vocab, "num_layers": info.Layers,
		"num_kv_heads": info.KVHeads, "head_dim": info.HeadDim, "tensor_parallel_size": info.TP,
		"has_chat_template": s.cfg.Template != nil,
	})
}

func (s *Server) metrics(w http.ResponseWriter, q *http.Request) {
	if s.cfg.MetricsHandler == nil {
		s.fail(w, openai.NewError(http.StatusNotFound, "", "metrics are off"))
		return
	}
	s.cfg.MetricsHandler.ServeHTTP(w, q)
}
