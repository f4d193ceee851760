package loopback

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Drive runs nodes, such as devices, in virtual time until done returns true: it lets them do what
// is due, and moves the clock of the link to the next arrival or timer. It calls done whenever
// something may have changed.
//
//	err := loopback.Drive(link, time.Second, func() bool { return cq.Len() > 0 }, client, server)
//
// Errors: ErrStuck if nothing will ever happen, or ErrTimeout after limit of virtual time, with a
// description of what the nodes wait for. A negative limit means none. Drive panics if the link is
// not virtual. To run programs that block use a Sim.
func Drive(link *Link, limit time.Duration, done func() bool, nodes ...Node) error {
	s := NewSim(link)
	s.Add(nodes...)
	return s.until(context.Background(), limit, done)
}

// maxListed is the number of nodes that an error describes.
const maxListed = 8

// state describes what everything waits for, as seen began.
func (s *Sim) state(began int64) string {
	var b strings.Builder
	now := s.link.Now()
	fmt.Fprintf(&b, "after %v of virtual time: ", time.Duration(now-began))
	if at, ok := s.link.NextEvent(); ok {
		fmt.Fprintf(&b, "the next frame arrives %s", in(at-now))
	} else {
		b.WriteString("no frame is in flight")
	}
	for i, n := range s.nodes[:min(len(s.nodes), maxListed)] {
		if at, ok := n.NextTimeout(); ok {
			fmt.Fprintf(&b, ", node %d has a timer %s", i, in(at-now))
		} else {
			fmt.Fprintf(&b, ", node %d has no timer", i)
		}
	}
	if n := len(s.procs); n > 0 {
		fmt.Fprintf(&b, ", %d processes wait", n)
	}
	return b.String()
}

func in(ns int64) string {
	if ns <= 0 {
		return "now"
	}
	return "in " + time.Duration(ns).String()
}
