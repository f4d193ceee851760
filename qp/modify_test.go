package qp

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
)

// cell is one field of the transition table (IBA 11.2.4.2, in the form of verbs): the required and
// optional attributes of a transition.
type cell struct{ required, optional AttrMask }

// cells was written from the rules of verbs, not from the code. Transitions that are not listed do
// not exist. The device determines P_Key and port, so RESET to INIT requires less.
var cells = map[Type]map[[2]State]cell{
	RC: {
		{Reset, Init}: {0, AttrAccess | AttrPKey | AttrSelective | AttrCongestion},
		{Init, Init}:  {0, AttrAccess | AttrPKey | AttrSelective | AttrCongestion},
		{Init, RTR}: {AttrPath | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
			AttrAccess | AttrPKey | AttrSelective | AttrCongestion},
		{RTR, RTS}: {AttrSQPSN | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic,
			AttrAccess | AttrMinRNRTimer | AttrPath | AttrCongestion},
		{RTS, RTS}: {0, AttrAccess | AttrMinRNRTimer | AttrPath | AttrCongestion},
		{RTS, SQD}: {0, 0},
		{SQD, SQD}: {0, AttrPath | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic | AttrMaxDestRdAtomic | AttrMinRNRTimer | AttrAccess | AttrPKey | AttrCongestion},
		{SQD, RTS}: {0, AttrAccess | AttrMinRNRTimer | AttrCongestion},
	},
	UC: {
		{Reset, Init}: {0, AttrAccess | AttrPKey},
		{Init, Init}:  {0, AttrAccess | AttrPKey},
		{Init, RTR}:   {AttrPath | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAccess | AttrPKey},
		{RTR, RTS}:    {AttrSQPSN, AttrAccess | AttrPath},
		{RTS, RTS}:    {0, AttrAccess | AttrPath},
		{RTS, SQD}:    {0, 0},
		{SQD, SQD}:    {0, AttrPath | AttrAccess | AttrPKey},
		{SQD, RTS}:    {0, AttrAccess},
		{SQE, RTS}:    {0, AttrAccess},
	},
	UD: {
		{Reset, Init}: {AttrQKey, AttrPKey},
		{Init, Init}:  {0, AttrPKey | AttrQKey},
		{Init, RTR}:   {0, AttrPKey | AttrQKey},
		{RTR, RTS}:    {AttrSQPSN, AttrQKey},
		{RTS, RTS}:    {0, AttrQKey},
		{RTS, SQD}:    {0, 0},
		{SQD, SQD}:    {0, AttrPKey | AttrQKey},
		{SQD, RTS}:    {0, AttrQKey},
		{SQE, RTS}:    {0, AttrQKey},
	},
}

const allAttrs = AttrCongestion<<1 - 1

// bare creates a QP and sets its state.
func bare(t testing.TB, typ Type, st State) (*world, *QP) {
	w := newWorld(t, 1)
	e := w.ends[0]
	q, err := e.CreateQP(InitAttr{Type: typ, PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SQDepth: 4,
		RQDepth: 4})
	must(t, err)
	q.setState(st)
	return w, q
}

// Every field of the table: with the required attributes, with all optional ones, with each
// required one missing, and with each unlisted one added. Also every transition that does not
// exist. RESET and ERR can be entered from every state without attributes.
func TestTransitionTable(t *testing.T) {
	for typ := range numTypes {
		w, q := bare(t, typ, Reset)
		full := connectAttr()
		full.Path, full.PKey = w.path(0), bth.DefaultPKey
		// Each attempt starts with the same QP in the same state.
		try := func(from, to State, mask AttrMask) error {
			q.reset()
			q.setState(from)
			a := full
			a.State = to
			err := q.Modify(0, &a, mask|AttrState)
			if want := to; err == nil && q.State() != want || err != nil && q.State() != from {
				t.Errorf("%s, %s to %s with %s: %v, and the QP is in %s", typ, from, to, mask, err,
					q.State())
			}
			return err
		}
		for from := range numStates {
			for to := range numStates {
				what := fmt.Sprintf("%s, %s to %s", typ, from, to)
				c, exists := cells[typ][[2]State{from, to}]
				if to == Reset || to == Err {
					exists = true
				}
				if !exists {
					for _, mask := range []AttrMask{0, allAttrs} {
						if err := try(from, to, mask); !errors.Is(err, ErrQPState) {
							t.Errorf("%s does not exist: %v", what, err)
						}
					}
					continue
				}
				if err := try(from, to, c.required); err != nil {
					t.Errorf("%s with the required attributes: %v", what, err)
				}
				if err := try(from, to, c.required|c.optional); err != nil {
					t.Errorf("%s with all attributes: %v", what, err)
				}
				for m := AttrState << 1; m < allAttrs; m <<= 1 {
					switch {
					case c.required&m != 0:
						if err := try(from, to, c.required&^m|c.optional&^m); !errors.Is(err,
							ErrInvalidAttr) {
							t.Errorf("%s without %s: %v", what, m, err)
						}
					case c.optional&m == 0:
						if err := try(from, to, c.required|m); !errors.Is(err, ErrInvalidAttr) {
							t.Errorf("%s with %s: %v", what, m, err)
						}
					}
				}
			}
		}
	}
}

// Without AttrState attributes change within a state, as the diagonal of the table allows.
func TestModifyWithoutState(t *testing.T) {
	for typ := range numTypes {
		for st := range numStates {
			w, q := bare(t, typ, st)
			a := connectAttr()
			a.Path, a.QKey, a.PKey = w.path(0), 5, bth.DefaultPKey
			mask := AttrAccess
			if typ == UD {
				mask = AttrQKey
			}
			err := q.Modify(0, &a, mask)
			c := cells[typ][[2]State{st, st}]
			if want := c.optional&mask != 0; (err == nil) != want {
				t.Errorf("%s in %s, %s: %v", typ, st, mask, err)
			}
		}
	}
}

// Values out of range are rejected, including a P_Key without partition (IBA 10.9.1), and no
// attribute of the same call takes effect.
func TestModifyRanges(t *testing.T) {
	type edit = func(a *Attr)
	for _, c := range []struct {
		mask     AttrMask
		from, to State
		bad      []edit
		good     []edit
	}{
		{AttrPathMTU, Init, RTR,
			[]edit{func(a *Attr) { a.PathMTU = 0 }, func(a *Attr) { a.PathMTU = 1500 },
				func(a *Attr) { a.PathMTU = 8192 }, func(a *Attr) { a.PathMTU = -256 }},
			[]edit{func(a *Attr) { a.PathMTU = 256 }, func(a *Attr) { a.PathMTU = 4096 }}},
		{AttrRQPSN, Init, RTR, []edit{func(a *Attr) { a.RQPSN = 1 << 24 }},
			[]edit{func(a *Attr) { a.RQPSN = 1<<24 - 1 }}},
		{AttrDestQPN, Init, RTR, []edit{func(a *Attr) { a.DestQPN = 1 << 24 }},
			[]edit{func(a *Attr) { a.DestQPN = 1<<24 - 1 }}},
		{AttrMaxDestRdAtomic, Init, RTR,
			[]edit{func(a *Attr) { a.MaxDestRdAtomic = MaxRdAtomic + 1 }}, []edit{func(a *Attr) { a.MaxDestRdAtomic = MaxRdAtomic }}},
		{AttrMinRNRTimer, Init, RTR, []edit{func(a *Attr) { a.MinRNRTimer = 32 }},
			[]edit{func(a *Attr) { a.MinRNRTimer = 31 }}},
		{AttrPath, Init, RTR, []edit{func(a *Attr) { a.Path = frame.Path{} }},
			[]edit{func(a *Attr) { a.Path = frame.NewBarePath(&frame.Address{Dst: bth.GID{15: 1}}) }}},
		{AttrPKey, Init, RTR,
			[]edit{func(a *Attr) { a.PKey = 0 },
				func(a *Attr) { a.PKey = 0x8000 }}, []edit{func(a *Attr) { a.PKey = 1 }}},
		{AttrSQPSN, RTR, RTS, []edit{func(a *Attr) { a.SQPSN = 1 << 24 }},
			[]edit{func(a *Attr) { a.SQPSN = 1<<24 - 1 }}},
		{AttrTimeout, RTR, RTS, []edit{func(a *Attr) { a.Timeout = 32 }},
			[]edit{func(a *Attr) { a.Timeout = 31 }, func(a *Attr) { a.Timeout = 0 }}},
		{AttrRetryCnt, RTR, RTS, []edit{func(a *Attr) { a.RetryCnt = 8 }},
			[]edit{func(a *Attr) { a.RetryCnt = 7 }}},
		{AttrRNRRetry, RTR, RTS, []edit{func(a *Attr) { a.RNRRetry = 8 }},
			[]edit{func(a *Attr) { a.RNRRetry = 7 }}},
		{AttrMaxRdAtomic, RTR, RTS, []edit{func(a *Attr) { a.MaxRdAtomic = MaxRdAtomic + 1 }},
			[]edit{func(a *Attr) { a.MaxRdAtomic = MaxRdAtomic }}},
		{AttrAccess, Reset, Init, []edit{func(a *Attr) { a.Access = mr.ZeroBased }},
			[]edit{func(a *Attr) { a.Access = allAccess | mr.LocalWrite }}},
	} {
		all := cells[RC][[2]State{c.from, c.to}]
		try := func(e edit, want bool) {
			w, q := bare(t, RC, c.from)
			a := connectAttr()
			a.State, a.Path, a.PKey = c.to, w.path(0), bth.DefaultPKey
			e(&a)
			before := q.Query()
			err := q.Modify(0, &a, all.required|all.optional|AttrState)
			if (err == nil) != want {
				t.Errorf("%s: %v, want accepted %v", c.mask, err, want)
			}
			if err != nil && (!errors.Is(err, ErrInvalidAttr) || q.Query() != before) {
				t.Errorf("%s: %v changed something", c.mask, err)
			}
		}
		for _, e := range c.bad {
			try(e, false)
		}
		for _, e := range c.good {
			try(e, true)
		}
	}
}

// Query returns what was set.
func TestQuery(t *testing.T) {
	w := newWorld(t, 1)
	a, b := w.pair(RC)
	want := connectAttr()
	want.State, want.DestQPN, want.Path, want.PKey = RTS, b.QPN(), w.path(0), bth.DefaultPKey
	want.Path.SetECT()
	if got := a.Query(); got != want {
		t.Errorf("Query %+v\nwant  %+v", got, want)
	}
	must(t, a.Modify(0, &Attr{State: Reset}, AttrState))
	if got := a.Query(); got != (Attr{PKey: bth.DefaultPKey}) {
		t.Errorf("after RESET: %+v", got)
	}
}

// CreateQP rejects invalid parameters.
func TestCreateQPRefuses(t *testing.T) {
	w := newWorld(t, 1)
	e := w.ends[0]
	srq, err := w.ends[1].NewSRQ(w.ends[1].pd, SRQConfig{Depth: 4})
	must(t, err)
	for _, c := range []struct {
		name string
		edit func(a *InitAttr)
		want error
	}{
		{"type", func(a *InitAttr) { a.Type = numTypes }, ErrInvalidAttr},
		{"no PD", func(a *InitAttr) { a.PD = nil }, ErrInvalidAttr},
		{"no SendCQ", func(a *InitAttr) { a.SendCQ = nil }, ErrInvalidAttr},
		{"no RecvCQ", func(a *InitAttr) { a.RecvCQ = nil }, ErrInvalidAttr},
		{"SQ too deep", func(a *InitAttr) { a.SQDepth = MaxQueueDepth + 1 }, ErrInvalidDepth},
		{"RQ of negative depth", func(a *InitAttr) { a.RQDepth = -1 }, ErrInvalidDepth},
		{"too many SGEs", func(a *InitAttr) { a.MaxSendSGE = MaxSGE + 1 }, ErrInvalidAttr},
		{"too much inline", func(a *InitAttr) { a.MaxInline = MaxInline + 1 }, ErrInvalidAttr},
		{"QPN of 25 bits", func(a *InitAttr) { a.QPN = 1 << 24 }, ErrInvalidAttr},
		{"multicast QPN", func(a *InitAttr) { a.QPN = bth.QPNMulticast }, ErrInvalidAttr},
		{"SRQ of another engine", func(a *InitAttr) { a.SRQ = srq }, ErrInvalidAttr},
	} {
		a := InitAttr{PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, SQDepth: 1, RQDepth: 1}
		c.edit(&a)
		if _, err := e.CreateQP(a); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	a := InitAttr{PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq, QPN: 77}
	_, err = e.CreateQP(a)
	must(t, err)
	if _, err := e.CreateQP(a); !errors.Is(err, ErrInvalidAttr) {
		t.Errorf("a used QPN: %v", err)
	}
	small, err := NewEngine(Config{MRs: e.mrs, Rand: func() uint64 { return 5 }, MaxQP: 1})
	must(t, err)
	a.QPN = 0
	_, err = small.CreateQP(a)
	must(t, err)
	if _, err := small.CreateQP(a); !errors.Is(err, ErrTooManyQPs) {
		t.Errorf("one QP too many: %v", err)
	}
}
