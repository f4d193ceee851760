package loop

import (
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// newLoop makes a loop in real time.
func newLoop(t *testing.T, c Config) *Loop {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{})
	must(t, err)
	var n atomic.Uint64
	table, err := mr.NewTable(mr.Config{Rand: func() uint64 { return n.Add(1) }})
	must(t, err)
	c.Engine, err = qp.NewEngine(qp.Config{MRs: table, Rand: func() uint64 { return n.Add(1) }})
	must(t, err)
	c.Port, c.Host = link.Port(0), noHost{}
	l := New(c)
	t.Cleanup(func() { must(t, l.Stop()) })
	return l
}

// Commands are refused after Stop.
func TestDoAfterStop(t *testing.T) {
	for _, manual := range []bool{false, true} {
		l := newLoop(t, Config{Manual: manual, Spin: AutoSpin})
		if !manual {
			must(t, l.Start(-1))
		}
		if !l.Do(func(qp.Time) {}) {
			t.Errorf("manual %v: Do() = false before Stop", manual)
		}
		must(t, l.Stop())
		if l.Do(func(qp.Time) { t.Errorf("manual %v: a command ran after Stop", manual) }) {
			t.Errorf("manual %v: Do() = true after Stop", manual)
		}
		if _, open := l.PortInfo(); open {
			t.Errorf("manual %v: the port is open after Stop", manual)
		}
	}
}

// Start fails for a CPU that does not exist, and Stop works nevertheless.
func TestStartOnMissingCPU(t *testing.T) {
	l := newLoop(t, Config{Spin: AutoSpin})
	if err := l.Start(1 << 20); err == nil {
		t.Error("Start(1<<20) = nil, want an error")
	}
}
