package sink

import (
	"fmt"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// maxHeld is the number of blocks of a session that may arrive before an earlier one.
const maxHeld = 1 << 14

// order puts the blocks of a session in order. The zero value begins with block 0.
type order struct {
	next uint32
	held map[uint32]*filecopy.Block
}

// add adds a block.
func (o *order) add(b *filecopy.Block) error {
	if b.Seq-o.next >= maxHeld || o.held[b.Seq] != nil {
		return fmt.Errorf("%w: block %d instead of block %d", record.ErrFormat, b.Seq, o.next)
	}
	if o.held == nil {
		o.held = map[uint32]*filecopy.Block{}
	}
	o.held[b.Seq] = b
	return nil
}

// take returns the next block, nil if it has not arrived.
func (o *order) take() *filecopy.Block {
	b := o.held[o.next]
	if b != nil {
		delete(o.held, o.next)
		o.next++
	}
	return b
}

// drop gives back all blocks.
func (o *order) drop(conn filecopy.Conn) {
	for seq, b := range o.held {
		conn.PutFree(b)
		delete(o.held, seq)
	}
}
