package loop

import (
	"testing"

	"github.com/gorxe/gorxe/driver"
)

// mtuPort is a port whose MTU changes: its buffers have n bytes.
type mtuPort struct {
	driver.Port
	n int
}

func (p *mtuPort) Alloc(bufs []driver.Buf) int {
	n := p.Port.Alloc(bufs)
	for i := range bufs[:n] {
		bufs[i].B = bufs[i].B[:p.n]
	}
	return n
}

// After the MTU of the port has grown, packets do not go to buffers that the loop has allocated
// before, in which they do not fit.
func TestBuffersAfterMTUChange(t *testing.T) {
	port := new(mtuPort)
	a, b := newPair(t, pairConfig{wrap: func(i int, p driver.Port) driver.Port {
		if i == 1 {
			return p
		}
		port.Port, port.n = p, 600
		return port
	}})
	a.mem[0], a.mem[4095] = 1, 1
	a.write(t, b, 8, 0)
	driveUntil(t, a, b, func() bool { return b.mem[0] == 1 })
	if a.txn == 0 {
		t.Fatal("the loop keeps no buffers: the test is too tame")
	}

	port.n = port.Info().MaxFrame
	a.CheckPort()
	a.write(t, b, 4096, 0)
	driveUntil(t, a, b, func() bool { return b.mem[4095] == 1 })
	if n := a.eng.Counters().DropLength; n != 0 {
		t.Errorf("%d packets did not fit in their buffers, want 0", n)
	}
}
