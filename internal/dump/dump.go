package dump

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
)

// Dumper prints the RoCEv2 packets of a source.
type Dumper struct {
	Source Source
	Save   *Saver // also writes the frames here; nil: nowhere
	JSON   bool   // print JSON instead of text
	Out    *bufio.Writer
	Limit  int // number of RoCEv2 packets after which Run ends; 0: none
	// ClassMap says which traffic classes packets have.
	ClassMap roce.ClassMap

	decoder frame.Decoder
	sum     summary
}

// Run prints packets until the source or ctx ends or Limit is reached. It flushes Out after each
// packet of a live source only.
func (d *Dumper) Run(ctx context.Context) error {
	p := new(bth.Packet)
	for n := 1; ; n++ {
		c, err := d.Source.Next()
		if err == io.EOF || err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		if n == 1 {
			d.sum.start = c.Info.Time
		}
		*p = bth.Packet{}
		reason := d.decoder.Decode(c.Frame, p)
		d.sum.count(c, reason)
		if !isRoCE(reason) {
			continue
		}
		if err := d.print(n, c, p, reason); err != nil {
			return err
		}
		if d.sum.roce == d.Limit {
			return nil
		}
	}
}

// print prints and saves a RoCE frame, valid or not. n is its number in the source.
func (d *Dumper) print(n int, c *Capture, p *bth.Packet, reason frame.Reason) error {
	if d.Save != nil {
		if err := d.Save.Write(c); err != nil {
			return err
		}
	}
	var err error
	if d.JSON {
		if p.BTH == nil {
			return nil // the fields of the record are unknown
		}
		err = cli.JSON(d.Out, newRecord(n, c, &d.ClassMap, p, reason))
	} else {
		err = writeLine(d.Out, n, c.Info.Time.Sub(d.sum.start), &d.ClassMap, p, reason)
	}
	if err == nil && d.Source.Live() {
		err = d.Out.Flush()
	}
	return err
}

// isRoCE reports whether a frame that was decoded with this result is RoCE as far as the decoder
// knows.
func isRoCE(r frame.Reason) bool {
	switch r {
	case frame.ReasonNotRoCE, frame.ReasonShort, frame.ReasonVLAN, frame.ReasonIPOptions,
		frame.ReasonFragment:
		return false
	}
	return true
}

// summary counts frames.
type summary struct {
	start   time.Time // time stamp of the first frame
	frames  int
	roce    int // RoCE frames, valid or not
	cut     int // frames that the capture truncated
	reasons [frame.NumReasons]int
}

func (s *summary) count(c *Capture, r frame.Reason) {
	s.frames++
	s.reasons[r]++
	if isRoCE(r) {
		s.roce++
	}
	if r == frame.ReasonShort && len(c.Frame) < c.Info.Length {
		s.cut++
	}
}

// WriteSummary writes the numbers of frames after Run, with advice about those that were not shown.
func (d *Dumper) WriteSummary(w io.Writer) {
	s, lost := &d.sum, d.Source.Lost()
	fmt.Fprintf(w, "%d frames, %d RoCEv2, %d with a bad ICRC\n", s.frames, s.roce,
		s.reasons[frame.ReasonICRC])
	for r := range frame.NumReasons {
		if n := s.reasons[r]; n > 0 && r != frame.ReasonOK && r != frame.ReasonNotRoCE &&
			r != frame.ReasonICRC {
			fmt.Fprintf(w, "%d refused: %v\n", n, r)
		}
	}
	if s.cut > 0 {
		fmt.Fprintf(w, "%d truncated by the capture: capture whole frames (tcpdump -s 0)\n", s.cut)
	}
	if lost > 0 {
		fmt.Fprintf(w, "%d lost because they arrived faster than they could be printed: use -q -w FILE\n", lost)
	}
}
