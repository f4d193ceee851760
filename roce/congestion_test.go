package roce

import (
	"errors"
	"testing"
)

func congestionOf(t *testing.T, q *QP) CongestionControl {
	t.Helper()
	a, err := q.Query()
	must(t, err)
	return a.Congestion
}

// A QP uses the algorithm of its QPConfig, or that of the Device. It keeps it when it is connected
// again.
func TestCongestionControlOption(t *testing.T) {
	for _, c := range []struct {
		opts []Option
		want CongestionControl
	}{
		{nil, CongestionAdaptive},
		{[]Option{WithCongestionControl(CongestionDCQCN)}, CongestionDCQCN},
		{[]Option{WithCongestionControl(CongestionNone)}, CongestionNone},
	} {
		a, b := newRig(t, rigConfig{opts: c.opts})
		if got := congestionOf(t, a.qp); got != c.want {
			t.Errorf("device with %v: the QP uses %v", c.want, got)
		}
		for _, own := range []CongestionControl{CongestionAdaptive, CongestionDCQCN,
			CongestionNone} {
			q, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq, Congestion: &own})
			must(t, err)
			if got := congestionOf(t, q); got != own {
				t.Errorf("device with %v: the QP with %v uses %v", c.want, own, got)
			}
			must(t, q.Modify(&Attr{State: StateReset}, AttrState))
			must(t, q.Connect(within(t), b.qp.Local(), ConnectOptions{}))
			if got := congestionOf(t, q); got != own {
				t.Errorf("connected again, the QP with %v uses %v", own, got)
			}
			must(t, q.Modify(&Attr{Congestion: CongestionDCQCN}, AttrCongestion))
			if got := congestionOf(t, q); got != CongestionDCQCN {
				t.Errorf("after Modify the QP uses %v, want dcqcn", got)
			}
		}
		for _, typ := range []QPType{UC, UD} {
			_, err := a.CreateQP(a.pd, QPConfig{Type: typ, SendCQ: a.cq})
			must(t, err)
		}
	}
}

func TestInvalidCongestionControl(t *testing.T) {
	bad := CongestionControl(99)
	_, err := New(newLink(t, rigConfig{}.link).Port(0), WithCongestionControl(bad))
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("New() = %v, want ErrInvalid", err)
	}
	for _, bad := range []DCQCN{{Gain: 2}, {AlphaTimer: -1}, {RateTimer: 1}, {ByteCounter: 1},
		{FastRecovery: -1}, {Additive: -1}, {Hyper: -1}, {MinRate: 1}} {
		_, err := New(newLink(t, rigConfig{}.link).Port(0), WithExpert(Expert{DCQCN: bad}))
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("New() with %+v = %v, want ErrInvalid", bad, err)
		}
	}
	a, _ := newRig(t, rigConfig{opts: []Option{WithExpert(Expert{DCQCN: DCQCN{Gain: 1}})}})
	if _, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq, Congestion: &bad}); !errors.Is(err,
		ErrInvalidAttr) {
		t.Errorf("CreateQP() = %v, want ErrInvalidAttr", err)
	}
	for _, c := range []CongestionControl{CongestionAdaptive, CongestionDCQCN, CongestionNone} {
		if got, err := ParseCongestionControl(c.String()); got != c || err != nil {
			t.Errorf("ParseCongestionControl(%q) = %v, %v", c.String(), got, err)
		}
	}
	if _, err := ParseCongestionControl("reno"); !errors.Is(err, ErrInvalidAttr) {
		t.Errorf("ParseCongestionControl(reno) = %v, want ErrInvalidAttr", err)
	}
}
