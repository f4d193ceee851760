package roce

import (
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

func init() {
	inside.Loop = func(d any) *loop.Loop { return d.(*Device).loop }
	inside.Engine = func(d any) *qp.Engine { return d.(*Device).eng }
	inside.QP = func(q any) *qp.QP { return &q.(*QP).qp }
	inside.CQ = func(c any) *qp.CQ { return c.(*CQ).cq }
	inside.SRQ = func(s any) *qp.SRQ { return s.(*SRQ).srq }
	inside.AH = func(a any) *qp.AH { return &a.(*AH).ah }
	inside.Backing = func(b mr.Backing) any {
		return MROption(func(c *mrConfig) { c.backing = b })
	}
}
