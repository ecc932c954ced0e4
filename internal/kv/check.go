package kv

import "fmt"

// Holds tells whether b is in the prefix index.
func (p *Pool) Holds(b BlockID) bool { return p.blocks[b].id != 0 }

// An Entry is what the prefix index says of one block.
type Entry struct {
	ID, Parent Chain   // of the prefix that ends with the block, and of the one before it
	Tokens     []Token // of the block; valid until it is evicted
}

// Entry returns what the prefix index says of b, and false when b is not in it.
func (p *Pool) Entry(b BlockID) (Entry, bool) {
	x := &p.blocks[b]
	return Entry{x.id, x.parent, p.held(b)}, x.id != 0
}

// Check verifies every invariant of the pool: the free list holds exactly the
// blocks without references, the buckets exactly the indexed ones. It takes
// time in proportion to the pool; tests and builds with the invariants tag
// call it.
func (p *Pool) Check() error {
	n, last := 0, none
	for b := p.head; b != none; b = p.blocks[b].next {
		x := &p.blocks[b]
		if x.refs != 0 {
			return fmt.Errorf("kv: block %d is in the free list with %d references", b, x.refs)
		}
		if x.prev != last {
			return fmt.Errorf("kv: block %d is linked behind %d, not %d", b, x.prev, last)
		}
		last = b
		if n++; n > len(p.blocks) {
			return fmt.Errorf("kv: the free list is a ring")
		}
	}
	if last != p.tail || n != p.free {
		return fmt.Errorf("kv: %d free blocks in the list that ends at %d, counted %d ending at %d",
			n, last, p.free, p.tail)
	}
	idle, indexed := 0, 0
	for i := range p.blocks {
		x := &p.blocks[i]
		switch {
		case x.refs < 0:
			return fmt.Errorf("kv: block %d has %d references", i, x.refs)
		case x.refs == 0:
			idle++
		}
		if x.id != 0 {
			indexed++
			if x.sum != p.sumOf(x.parent, x.salt, p.held(BlockID(i))) {
				return fmt.Errorf("kv: block %d lies under another hash", i)
			}
		}
	}
	if idle != p.free {
		return fmt.Errorf("kv: %d blocks without references, %d free", idle, p.free)
	}
	listed := 0
	for i, b := range p.buckets {
		for ; b != none; b = p.blocks[b].after {
			if x := &p.blocks[b]; x.id == 0 || x.sum&p.mask != uint64(i) {
				return fmt.Errorf("kv: block %d is in bucket %d", b, i)
			}
			if listed++; listed > len(p.blocks) {
				return fmt.Errorf("kv: a bucket is a ring")
			}
		}
	}
	if listed != indexed || indexed != p.entries {
		return fmt.Errorf("kv: %d blocks in buckets, %d indexed, counted %d", listed, indexed, p.entries)
	}
	return nil
}
