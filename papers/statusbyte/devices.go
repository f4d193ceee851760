package statusbyte

import (
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// linkMTU allows path MTU 4096 with all headers.
const linkMTU = 4200

// epoch is the origin of the clock of all measurements.
var epoch = time.Now()

// now returns monotonic nanoseconds.
func now() int64 { return int64(time.Since(epoch)) }

// Progress modes of the sending and the receiving device.
var (
	manual = [2]roce.Progress{roce.Manual, roce.Manual}
	auto   = [2]roce.Progress{roce.Auto, roce.Auto}
	mixed  = [2]roce.Progress{roce.Auto, roce.Manual}
)

// devices are two devices on one link. Device 0 sends.
type devices struct {
	*testbed.Testbed
	cpus []int
	// share is the smallest share of the time that a receiving thread ran since share was set to 1.
	share float64
}

// openDevices creates the link and the devices. wrap may be nil; see testbed.Config.
func openDevices(
	link string, cpus []int, progress [2]roce.Progress,
	wrap func(side int, p driver.Port) driver.Port,
) (*devices, error) {
	bed, err := testbed.New(testbed.Config{
		Veth: link == kit.Veth, MTU: linkMTU, Wrap: wrap,
		Device: [2][]roce.Option{{roce.WithProgress(progress[0])},
			{roce.WithProgress(progress[1])}},
	})
	if err != nil {
		return nil, err
	}
	return &devices{Testbed: bed, cpus: cpus}, nil
}

// frames returns the number of packets that both devices have sent.
func (d *devices) frames() uint64 {
	return d.Dev[0].Counters().TxFrames + d.Dev[1].Counters().TxFrames
}

// naks returns the number of RNR NAKs that both devices have sent.
func (d *devices) naks() uint64 {
	return d.Dev[0].Counters().SentRNR + d.Dev[1].Counters().SentRNR
}
