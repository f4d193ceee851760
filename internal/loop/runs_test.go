package loop

import (
	"slices"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
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

// record returns a function for pairConfig.wrap that makes a port record the batches of side i.
func record(port *batchPort, i int) func(int, driver.Port) driver.Port {
	return func(k int, p driver.Port) driver.Port {
		if k != i {
			return p
		}
		port.Port = p
		return port
	}
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
		a, b := newPair(t, pairConfig{runs: c.runs, selective: true, wrap: record(port, 0)})
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

// On a port that sends runs, the last packet of a READ response may begin the next batch: it has
// the length of the first packet of the next response, not of those before it.
func TestBatchesEndBeforeLastResponse(t *testing.T) {
	for _, c := range []struct {
		runs  bool
		reads []int // packets
		want  []int
	}{
		{true, []int{40, 40, 40}, []int{39, 40, 41}},
		{true, []int{64, 64}, []int{63, 65}},
		{true, []int{10, 10, 10, 10, 10, 10, 10, 10}, []int{69, 11}},
		{true, []int{40}, []int{40}},
		{false, []int{40, 40}, []int{72, 8}},
	} {
		port := &batchPort{}
		a, b := newPair(t, pairConfig{runs: c.runs, selective: true, wrap: record(port, 1)})
		for _, n := range c.reads {
			_, err := a.qp.Post([]qp.SendWR{{Op: qp.OpRead, RKey: bth.RKey(b.mr.RKey()),
				SGEs: []qp.SGE{{Length: uint32(n * 1024), LKey: bth.LKey(a.mr.LKey())}}}})
			must(t, err)
		}
		a.Posted(a.qp)
		a.TryStep()
		for range len(c.want) {
			b.TryStep()
		}
		if !slices.Equal(port.batches, c.want) {
			t.Errorf("runs = %v, READs of %v packets: batches of %v frames, want %v", c.runs,
				c.reads, port.batches, c.want)
		}
	}
}
