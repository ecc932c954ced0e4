package fault

import (
	"context"
	"fmt"
	"time"

	"tandem/internal/connector"
	"tandem/internal/kv"
	"tandem/internal/transfer"
)

// Handle implements connector.Network: P's answers pass through here.
func (n *network) Handle(k connector.Kind, f connector.Handler) {
	n.Network.Handle(k, func(ctx context.Context, from connector.CallerID, body []byte) ([]byte, error) {
		if err := n.process(ctx); err != nil {
			return nil, err
		}
		switch k {
		case connector.KindClaim:
			return n.seal(ctx, from, body, f)
		case connector.KindRenew, connector.KindReturn:
			return n.notice(ctx, from, body, f)
		default:
			return f(ctx, from, body)
		}
	})
}

// Authorize implements connector.Network: what P lets others read.
func (n *network) Authorize(f func(connector.CallerID, kv.Epoch, connector.LeaseID, []int32) error) {
	n.Network.Authorize(func(from connector.CallerID, epoch kv.Epoch, id connector.LeaseID, tiles []int32) error {
		if err := n.process(context.Background()); err != nil { // ends with the freeze or the network
			return err
		}
		return f(from, epoch, id, tiles)
	})
}

// process is P before it serves a call: it waits while P is frozen, and may
// freeze it.
func (n *network) process(ctx context.Context) error {
	if err := n.thaw(ctx); err != nil {
		return err
	}
	f, changed, hit := n.in.decide(Process, Subject{})
	if !hit {
		return nil
	}
	now := freeze{on: true, changed: changed}
	switch {
	case f.Action == Delay:
		now.until = time.Now().Add(time.Duration(f.Delay))
	case f.Action == Kill && n.in.cfg.Kill != nil:
		n.in.cfg.Kill()
	}
	n.mu.Lock()
	n.frozen = now
	n.mu.Unlock()
	return n.thaw(ctx)
}

// thaw waits until P is not frozen.
func (n *network) thaw(ctx context.Context) error {
	n.mu.Lock()
	f := n.frozen
	n.mu.Unlock()
	if !f.on {
		return nil
	}
	var left time.Duration
	if !f.until.IsZero() {
		if left = time.Until(f.until); left <= 0 {
			return nil
		}
	}
	_, err := n.pause(ctx, left, f.changed, nil)
	return err
}

// seal is P's answer to a claim that it grants.
func (n *network) seal(ctx context.Context, from connector.CallerID, body []byte, answer connector.Handler) ([]byte, error) {
	out, err := answer(ctx, from, body)
	s, granted := parseSums(out, len(n.arenas), n.arenas[0].Layout().Heads)
	if err != nil || !granted {
		return out, err
	}
	f, changed, hit := n.in.decide(Seal, Subject{})
	if !hit {
		return out, nil
	}
	switch f.Action {
	case Error:
		return nil, &transfer.RefusedError{Code: refusedFault, Text: "injected"}
	case Blackhole:
		return nil, n.lose(ctx, MaxHold, changed)
	case Delay:
		_, err := n.pause(ctx, time.Duration(f.Delay), changed, nil)
		return out, err
	default:
		return s.spoil(f), nil
	}
}

// notice is P's acknowledgement of a return or a renewal.
func (n *network) notice(ctx context.Context, from connector.CallerID, body []byte, answer connector.Handler) ([]byte, error) {
	out, err := answer(ctx, from, body)
	if err != nil {
		return nil, err
	}
	f, changed, hit := n.in.decide(Notice, Subject{})
	if !hit {
		return out, nil
	}
	switch f.Action {
	case Error:
		return nil, fmt.Errorf("%w: the message is acted on", errInjected)
	case Duplicate:
		_, err = answer(ctx, from, body)
	case Delay:
		_, err = n.pause(ctx, time.Duration(f.Delay), changed, nil)
	default:
		return nil, n.lose(ctx, MaxHold, changed)
	}
	return out, err
}
