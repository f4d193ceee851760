package uverbs

import (
	"reflect"
	"testing"

	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/qp"
)

func TestObjectsUntilClose(t *testing.T) {
	a, _ := connected(t, 2, 4096)
	if o := a.dev.Objects(); len(o.PDs) != 1 || len(o.CQs) != 1 || len(o.QPs) != 1 ||
		len(o.MRs) != 1 || len(o.Contexts) != 1 || len(o.SRQs) != 0 {
		t.Errorf("Objects() = %+v, want one of each kind but SRQs", o)
	}
	a.ctx.Close()
	if o := a.dev.Objects(); !reflect.DeepEqual(o, nldev.Objects{}) {
		t.Errorf("Objects() = %+v after Close, want none", o)
	}
}

// Objects describes each object once, and says to which domain it belongs.
func TestObjects(t *testing.T) {
	a, b := connected(t, 2, 4096)
	o := a.dev.Objects()
	if len(o.PDs) != 1 || len(o.CQs) != 1 || len(o.QPs) != 1 || len(o.MRs) != 1 {
		t.Fatalf("Objects() = %+v, want one of each kind", o)
	}
	pid, pd := uint32(a.ctx.pid), o.PDs[0].ID
	want := nldev.Objects{
		PDs: []nldev.PD{{ID: pd, Uses: 2, PID: pid}},
		CQs: []nldev.CQ{{ID: o.CQs[0].ID, Entries: o.CQs[0].Entries, Uses: 2, PID: pid}},
		QPs: []nldev.QP{{Number: o.QPs[0].Number, PD: pd, Type: 2, State: uint8(qp.RTS),
			Remote: b.dev.Objects().QPs[0].Number, RQPSN: o.QPs[0].RQPSN, SQPSN: o.QPs[0].SQPSN,
			Migration: o.QPs[0].Migration, PID: pid}},
		MRs:      []nldev.MR{{ID: o.MRs[0].ID, PD: pd, Length: 4096, PID: pid}},
		Contexts: []nldev.Context{{ID: 1, PID: pid}},
	}
	if !reflect.DeepEqual(o, want) {
		t.Errorf("Objects() = %+v, want %+v", o, want)
	}
	if o.CQs[0].Entries == 0 || pd == 0 || a.ctx.QP(o.QPs[0].Number) == nil {
		t.Errorf("Objects() = %+v: wrong numbers", o)
	}
}
