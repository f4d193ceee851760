package model

// cache is a fully associative cache of n entries that displaces the one used least recently. Keys are dense, from 0 on, so
// that a lookup is an index.
//
// LRU, because the paper's own figures 5 and 6 say so: one resource more than entries, used in turns, and all hits are gone.
// With random replacement 128 QPs in 100 entries would still hit more than half the time.
type cache struct {
	items []item
	left  int   // entries that are free
	head  int32 // used last
	tail  int32 // used least recently
}

type item struct {
	prev, next int32
	resident   bool
	ready      span   // when what was asked for has arrived
	batches    []span // WQE: when each turn's worth that is here or under way has arrived
}

const none = -1

func newCache(entries, keys int) *cache {
	return &cache{items: make([]item, keys), left: entries, head: none, tail: none}
}

// find is the entry of key, which counts as used now; nil: a miss.
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

// insert makes an entry for key, which has none.
func (c *cache) insert(key uint32) *item {
	if c.left == 0 {
		old := uint32(c.tail)
		c.unlink(old)
		c.items[old].resident = false
	} else {
		c.left--
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
