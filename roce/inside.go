package roce

import (
	"cmp"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

func init() {
	inside.Loop = func(d any) *loop.Loop { return d.(*Device).loop }
	inside.Engine = func(d any) *qp.Engine { return d.(*Device).eng }
	inside.QP = func(q any) *qp.QP { return &q.(*QP).qp }
	inside.CQ = func(c any) *qp.CQ { return c.(*CQ).cq }
	inside.SRQ = func(s any) *qp.SRQ { return s.(*SRQ).srq }
	inside.AH = func(a any) *qp.AH { return &a.(*AH).ah }
	inside.ResizeCQ = func(c any, depth int, prepare func() bool) error {
		return c.(*CQ).resize(depth, prepare)
	}
	inside.Backing = func(b mr.Backing) any {
		return MROption(func(c *mrConfig) { c.backing = b })
	}
	inside.Host = func(s inside.ServiceHost) any {
		return Option(func(c *config) { c.host = s })
	}
	inside.Announce = func(d any, id cm.ServiceID) error { return d.(*Device).service.announce(id) }
	inside.Withdraw = func(d any, id cm.ServiceID) { d.(*Device).service.withdraw(id) }
	inside.AllocMW = func(pd any, typ mr.WindowType) (inside.MW, error) {
		p := pd.(*PD)
		w, err := p.allocMW(MWType(typ), p.dev.mrs.AllocTaggedWindow)
		if err != nil {
			return nil, err
		}
		return taggedMW{w}, nil
	}
	inside.CM = func(d any, f func(cm.Time, *cm.CM)) bool {
		g := d.(*Device).gsi
		return g.dev.loop.Do(func(now qp.Time) {
			f(cm.Time(now), g.cm)
			g.dispatch(now)
			g.transmit(now)
		})
	}
	inside.ProgramName = func(name string) any {
		return Option(func(c *config) { c.program = name })
	}
	inside.Charge = func(d any, n int, what string) error { return d.(*Device).charge(n, what) }
	inside.Discharge = func(d any, n int) { d.(*Device).discharge(n) }
	inside.Report = func(d any, maxQPs int) []byte { return d.(*Device).reportJSON(maxQPs) }
	inside.HandleConn = func(d any, comm cm.CommID, gids bth.GIDPair, path *Path,
		h inside.CMHandler) {
		g := d.(*Device).gsi
		id := newCMID(comm, gids)
		id.handler = h
		g.ids[comm] = id
		g.paths.use(id, path)
	}
	inside.HandleListener = func(d any, l cm.ListenerID, h inside.CMHandler) {
		g := d.(*Device).gsi
		if h == nil {
			delete(g.handlers, l)
			return
		}
		g.handlers[l] = h
	}
}

// taggedMW implements inside.MW.
type taggedMW struct{ *MW }

func (w taggedMW) Key() mr.Key { return w.w.TaggedKey() }

// resize implements inside.ResizeCQ.
func (c *CQ) resize(depth int, prepare func() bool) error {
	d := c.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	more := qp.CQFootprint(min(depth, MaxCQDepth)) - c.bytes()
	if more > 0 {
		if err := d.mem.take(more, "a larger CQ"); err != nil {
			return err
		}
	}
	err := ErrInvalid
	gone := d.do(func(qp.Time) {
		if prepare() {
			err = c.cq.Resize(depth)
		}
	})
	if err = cmp.Or(gone, err); err != nil {
		more = -more
	}
	if more < 0 {
		d.mem.give(-more)
	}
	return err
}
