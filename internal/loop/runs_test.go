package loop

import (
	"slices"
	"testing"

	"github.com/gorxe/gorxe/driver"
)

// batchPort records how many frames each call of Send has.
type batchPort struct {
	driver.Port
	batches []int
}

func (p *batchPort) Send(bufs []driver.Buf) (int, error) {
	p.batches = append(p.batches, len(bufs))
	return p.Port.Send(bufs)
}

// On a port that sends runs, a batch ends with a message if the next one would be cut. Otherwise it
// is as long as possible, also after shorter ones.
func TestBatchesEndWithMessages(t *testing.T) {
	for _, c := range []struct {
		runs     bool
		messages []int // packets
		want     []int
	}{
		{true, []int{40, 40}, []int{40, 40}},
		{true, []int{64, 64}, []int{64, 64}},
		{true, []int{10, 10, 10, 10, 10, 10, 10, 10}, []int{70, 10}},
		{true, []int{1, 1, 1}, []int{3}},
		{false, []int{40, 40}, []int{72, 8}},
	} {
		port := &batchPort{}
		a, b := newPair(t, pairConfig{
			runs: c.runs, selective: true,
			wrap: func(i int, p driver.Port) driver.Port {
				if i > 0 {
					return p
				}
				port.Port = p
				return port
			},
		})
		for _, n := range c.messages {
			a.writeQuietly(t, b, n*1024, 0)
		}
		a.Posted(a.qp)
		a.TryStep()
		a.TryStep()
		if !slices.Equal(port.batches, c.want) {
			t.Errorf("runs = %v, messages of %v packets: batches of %v frames, want %v", c.runs,
				c.messages, port.batches, c.want)
		}
	}
}
