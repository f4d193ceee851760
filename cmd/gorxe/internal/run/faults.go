package run

import (
	"errors"
	"math/rand/v2"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// faults are the flags about the packets that the device sends.
type faults struct {
	loss, duplicate, reorder, corrupt cli.Percent
	delay, jitter                     cli.Duration
	seed                              uint64
	pcap                              string

	capture *loopback.Capture
	file    *os.File
}

// maxDelay is the largest delay of a packet.
const maxDelay = time.Second

func (f *faults) register(fs *pflag.FlagSet) {
	for _, p := range []struct {
		v           *cli.Percent
		name, usage string
	}{
		{&f.loss, "loss", "percentage of the sent packets to drop"},
		{&f.duplicate, "duplicate", "percentage of the sent packets to send twice"},
		{&f.reorder, "reorder", "percentage of the sent packets that others overtake"},
		{&f.corrupt, "corrupt", "percentage of the sent packets in which bits are changed"},
	} {
		*p.v = cli.Percent{Max: 1}
		fs.Var(p.v, p.name, p.usage)
	}
	f.delay, f.jitter = cli.Duration{Max: maxDelay}, cli.Duration{Max: maxDelay}
	fs.Var(&f.delay, "delay", "delay of sent packets, up to 1s")
	fs.Var(&f.jitter, "jitter", "upper limit of a random addition to --delay, up to 1s")
	fs.Uint64Var(&f.seed, "seed", 0, "seed of the faults (default: random)")
	fs.StringVar(&f.pcap, "pcap", "", "record the packets in this file")
}

func (f *faults) plan() loopback.Plan {
	return loopback.Plan{Loss: f.loss.Fraction, Duplicate: f.duplicate.Fraction,
		Reorder: f.reorder.Fraction, Corrupt: f.corrupt.Fraction, Delay: f.delay.D,
		Jitter: f.jitter.D}
}

// options returns the options of the device, and creates the file of --pcap.
func (f *faults) options() ([]roce.Option, error) {
	plan := f.plan()
	if f.pcap != "" {
		file, err := os.Create(f.pcap)
		if err != nil {
			return nil, err
		}
		f.file, f.capture = file, loopback.NewCapture(file, nil)
	}
	if plan == (loopback.Plan{}) && f.capture == nil {
		return nil, nil
	}
	seed := f.seed
	if seed == 0 {
		seed = rand.Uint64()
	}
	return []roce.Option{roce.WithWrapper(func(p roce.Port) roce.Port {
		if f.capture != nil {
			p = f.capture.Tee(p) // what is on the network, with the faults
		}
		if plan != (loopback.Plan{}) {
			p = loopback.Inject(p, seed, plan)
		}
		return p
	})}, nil
}

// close ends the file of --pcap, and returns err together with the errors of the file. Closing the
// device may have returned the first one already, as a part of err.
func (f *faults) close(err error) error {
	if f.file == nil {
		return err
	}
	if e := f.capture.Flush(); !errors.Is(err, e) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, f.file.Close())
}
