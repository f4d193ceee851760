package qp

import "github.com/gorxe/gorxe/bth"

// placement is what a responder knows about the memory of messages after a gap.
type placement struct {
	extents []extent
}

// extent is the memory of a message.
type extent struct {
	first, end uint64
	va         uint64
	key        bth.RKey
	length     uint32
}

func (r *reorder) learn(q *QP, psn uint64, p *bth.Packet)      {}
func (r *reorder) place(q *QP, psn uint64, p *bth.Packet) bool { return false }
func (r *reorder) compact()                                    {}
func (r *reorder) current(psn uint64) *extent                  { return nil }
