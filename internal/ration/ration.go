// Package ration keeps repeated log lines few without losing what they say.
//
// Events that are alike have one key. The first is told at once. Those that
// follow within a window are summed up, and told as one word when the window
// ends; so each key has one word in a window at most, and every event is in
// exactly one word. A Table holds a bounded number of keys: events for which
// there is no room share a key that the caller chooses.
//
// A Table is a value without clock, goroutine or I/O. Its owner asks Next when
// to call Due, and calls Flush when nothing more will come.
package ration

import (
	"cmp"
	"slices"
	"time"
)

// A Word is what is to be told of one key.
type Word[K comparable, V any] struct {
	Key  K
	What V   // of all its events
	More int // events besides one
}

// A Config says how a Table works.
type Config[K comparable, V any] struct {
	Window time.Duration // between two words of one key
	Keys   int           // with a word in their window at once

	// Other returns the key of an event that finds no room. Its keys come on top
	// of Keys, so there must be few of them.
	Other func(K) K

	// Add returns what is told of the events of sum and that of v; nil: the
	// latest, v.
	Add func(sum, v V) V
}

// A Table is the keys that had a word in their window. It belongs to one
// goroutine.
type Table[K comparable, V any] struct {
	cfg   Config[K, V]
	open  map[K]*entry[V]
	count uint64
}

type entry[V any] struct {
	number uint64 // in the order in which keys came
	until  time.Time
	what   V
	left   int // events that were not told
}

// New returns an empty table.
func New[K comparable, V any](cfg Config[K, V]) *Table[K, V] {
	if cfg.Add == nil {
		cfg.Add = func(_, v V) V { return v }
	}
	return &Table[K, V]{cfg: cfg, open: map[K]*entry[V]{}}
}

// Tell takes an event at time now. It returns a word to be told at once, or false
// when Due or Flush will tell of it.
func (t *Table[K, V]) Tell(key K, v V, now time.Time) (Word[K, V], bool) {
	e := t.open[key]
	if e == nil && len(t.open) >= t.cfg.Keys {
		t.sweep(now)
		if len(t.open) >= t.cfg.Keys {
			key = t.cfg.Other(key)
			e = t.open[key]
		}
	}
	if e == nil {
		t.count++
		e = &entry[V]{number: t.count}
		t.open[key] = e
	}
	if e.left > 0 {
		v = t.cfg.Add(e.what, v)
	}
	e.what, e.left = v, e.left+1
	if now.Before(e.until) {
		return Word[K, V]{}, false
	}
	return t.word(key, e, now), true
}

// word tells what is left of e and begins its next window.
func (t *Table[K, V]) word(key K, e *entry[V], now time.Time) Word[K, V] {
	w := Word[K, V]{Key: key, What: e.what, More: e.left - 1}
	var none V
	e.what, e.left, e.until = none, 0, now.Add(t.cfg.Window)
	return w
}

// sweep forgets keys whose window has ended with nothing left to tell.
func (t *Table[K, V]) sweep(now time.Time) {
	for k, e := range t.open {
		if e.left == 0 && !now.Before(e.until) {
			delete(t.open, k)
		}
	}
}

// Next returns when Due must be called; false: there is nothing left to tell.
func (t *Table[K, V]) Next() (at time.Time, ok bool) {
	for _, e := range t.open {
		if e.left > 0 && (!ok || e.until.Before(at)) {
			at, ok = e.until, true
		}
	}
	return at, ok
}

// Due returns the words whose window has ended by now, oldest key first.
func (t *Table[K, V]) Due(now time.Time) []Word[K, V] {
	t.sweep(now)
	return t.words(now, func(e *entry[V]) bool { return !now.Before(e.until) })
}

// Flush returns all that was not told, oldest key first, and forgets every key.
func (t *Table[K, V]) Flush() []Word[K, V] {
	words := t.words(time.Time{}, func(*entry[V]) bool { return true })
	clear(t.open)
	return words
}

func (t *Table[K, V]) words(now time.Time, due func(*entry[V]) bool) (words []Word[K, V]) {
	var keys []K
	for k, e := range t.open {
		if e.left > 0 && due(e) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, func(a, b K) int { return cmp.Compare(t.open[a].number, t.open[b].number) })
	for _, k := range keys {
		words = append(words, t.word(k, t.open[k], now))
	}
	return words
}
