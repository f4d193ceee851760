package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/gorxe/gorxe/interop/lab"
)

// gorxePath is the path of the binary in the guests.
const gorxePath = "/usr/bin/gorxe"

// key identifies a series of trials.
type key struct{ figure, side string }

// comparison is the whole measurement.
type comparison struct {
	o              *options
	server, client *lab.Guest
	say            func(string)

	trials   map[key][]trial // the first is the short one, then one per round
	rounds   int             // completed rounds
	datapath string          // as gorxe names it
}

// install copies gorxe into both guests.
func (c *comparison) install(ctx context.Context, binary string) error {
	for _, g := range []*lab.Guest{c.server, c.client} {
		f, err := os.Open(binary)
		if err != nil {
			return err
		}
		err = g.Put(ctx, gorxePath, 0o755, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// measure makes the short runs, which determine the length of the others, and the rounds.
func (c *comparison) measure(ctx context.Context) error {
	start := time.Now()
	for i := range figures {
		for k := range sides {
			s, f := sides[k], &figures[i]
			// A program's first run in an emulated guest is slower than later ones.
			first, err := c.try(ctx, s, f, f.trial)
			if err != nil {
				return err
			}
			if err := c.add(ctx, s, f, f.trial); err != nil {
				return err
			}
			short := &c.trials[key{f.name, s.name}][0]
			short.cpu = min(short.cpu, first.cpu)
		}
	}
	var longest time.Duration
	for c.rounds = 0; c.rounds < c.o.rounds; c.rounds++ {
		began := time.Now()
		if c.rounds > 0 && began.Sub(start)+longest > c.o.budget {
			c.say(fmt.Sprintf("stopping after %d rounds of %d: %v would be exceeded (-budget)",
				c.rounds, c.o.rounds, c.o.budget))
			return nil
		}
		if err := c.round(ctx); err != nil {
			return err
		}
		longest = max(longest, time.Since(began))
		c.say(fmt.Sprintf("round %d of %d took %v", c.rounds+1, c.o.rounds,
			time.Since(began).Round(time.Second)))
	}
	return nil
}

// round measures every figure on all sides. The side that goes first alternates.
func (c *comparison) round(ctx context.Context) error {
	for i := range figures {
		for k := range sides {
			s, f := sides[(k+c.rounds+i)%len(sides)], &figures[i]
			short := &c.trials[key{f.name, s.name}][0]
			if err := c.add(ctx, s, f, f.messages(short, c.o.run.Seconds())); err != nil {
				return err
			}
		}
	}
	return nil
}

// add makes one run and records it.
func (c *comparison) add(ctx context.Context, s *side, f *figure, n int) error {
	t, err := c.try(ctx, s, f, n)
	if err != nil {
		return err
	}
	if t.datapath != "" {
		c.datapath = t.datapath
	}
	k := key{f.name, s.name}
	c.trials[k] = append(c.trials[k], t)
	return nil
}
