package model

// cache is a fully associative cache that replaces the least recently used entry. Keys are dense,
// from 0 on, so that a lookup is an index.
//
// It is LRU because figures 5 and 6 of the paper show LRU: with one resource more than entries,
// used round robin, no lookup hits. With random replacement, 128 QPs in 100 entries would still
// hit more than half the time.
type cache struct {
	items []item
	free  int   // unused entries
	head  int32 // most recently used
	tail  int32 // least recently used
}

type item struct {
	prev, next int32
	resident   bool
	ready      span   // arrival of the requested data
	batches    []span // WQE: arrival of the WQEs of each turn that is present or requested
}

const none = -1

func newCache(entries, keys int) *cache {
	return &cache{items: make([]item, keys), free: entries, head: none, tail: none}
}

// find returns the entry of key and marks it as used. It returns nil if there is none: a miss.
func (c *cache) find(key uint32) *item {
	it := &c.items[key]
	if !it.resident {
		return nil
	}
	if c.head != int32(key) {
		c.unlink(key)
		c.link(key)
	}
	return it
}

// insert adds an entry for key, which must have none.
func (c *cache) insert(key uint32) *item {
	if c.free == 0 {
		old := uint32(c.tail)
		c.unlink(old)
		c.items[old].resident = false
	} else {
		c.free--
	}
	c.link(key)
	it := &c.items[key]
	it.resident, it.ready, it.batches = true, 0, it.batches[:0]
	return it
}

func (c *cache) link(key uint32) {
	it := &c.items[key]
	it.prev, it.next = none, c.head
	if c.head != none {
		c.items[c.head].prev = int32(key)
	} else {
		c.tail = int32(key)
	}
	c.head = int32(key)
}

func (c *cache) unlink(key uint32) {
	it := &c.items[key]
	if it.prev != none {
		c.items[it.prev].next = it.next
	} else {
		c.head = it.next
	}
	if it.next != none {
		c.items[it.next].prev = it.prev
	} else {
		c.tail = it.prev
	}
}
