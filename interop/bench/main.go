package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/interop/peer"
)

// Limits of the flags.
const (
	maxRounds   = 100
	minRun      = 500 * time.Millisecond
	maxRun      = time.Minute
	minMTU      = 1280 // IPv6's
	bootRoom    = 5 * time.Minute
	oneTrialMax = 2 * time.Minute
)

type options struct {
	json   bool
	rounds int
	run    time.Duration
	budget time.Duration
	mtu    int
	mode   string
	gorxe  string
	debian string
}

func main() {
	var o options
	flag.BoolVar(&o.json, "json", false, "print a JSON array instead of a table")
	flag.IntVar(&o.rounds, "rounds", 5, "rounds of all figures on both sides")
	flag.DurationVar(&o.run, "duration", 3*time.Second, "target length of a single run")
	flag.DurationVar(&o.budget, "budget", 4*time.Minute, "start no further round after this time")
	flag.IntVar(&o.mtu, "mtu", 1500,
		fmt.Sprintf("device MTU, at most %d; 4176 gives path MTU 4096", lab.MaxMTU))
	flag.StringVar(&o.mode, "mode", "auto", "XDP mode of gorxe: auto, native or generic")
	flag.StringVar(&o.debian, "debian", "",
		"Debian release of the guests (default: this host's); path MTU 4096 needs Linux 6.6 or later (trixie)")
	flag.StringVar(&o.gorxe, "gorxe", "",
		"a static gorxe binary to measure (default: built from this tree)")
	flag.Parse()
	if err := o.check(); err != nil {
		fmt.Fprintln(os.Stderr, "interop-bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bootRoom+o.budget+oneTrialMax)
	defer cancel()
	if err := bench(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "interop-bench:", err)
		cancel()
		os.Exit(1)
	}
}

func (o *options) check() error {
	switch {
	case flag.NArg() > 0:
		return fmt.Errorf("unexpected argument %q (see -h)", flag.Arg(0))
	case o.rounds < 1 || o.rounds > maxRounds:
		return fmt.Errorf("%d rounds: choose 1 to %d (-rounds)", o.rounds, maxRounds)
	case o.run < minRun || o.run > maxRun:
		return fmt.Errorf("runs of %v: choose %v to %v (-duration)", o.run, minRun, maxRun)
	case o.mtu < minMTU || o.mtu > lab.MaxMTU:
		return fmt.Errorf("MTU %d: choose %d to %d (-mtu)", o.mtu, minMTU, lab.MaxMTU)
	case o.mode != "auto" && o.mode != "native" && o.mode != "generic":
		return fmt.Errorf("XDP mode %q: choose auto, native or generic (-mode)", o.mode)
	case o.budget <= 0:
		return fmt.Errorf("a budget of %v: choose a positive time (-budget)", o.budget)
	}
	return nil
}

// bench boots the guests, measures and prints. Nothing is left when it returns.
func bench(ctx context.Context, o *options) error {
	if os.Geteuid() != 0 {
		return errors.New("network namespaces and guests need root: run it as root")
	}
	say := func(s string) { fmt.Fprintln(os.Stderr, "interop-bench:", s) }
	if err := image.Install(ctx, say); err != nil {
		return err
	}
	img, err := image.Get(ctx,
		image.Options{Debian: o.debian, Module: ".", Peers: peer.Sources(), Log: say})
	if err != nil {
		return err
	}
	binary := o.gorxe
	if binary == "" {
		dir, err := os.MkdirTemp("", "gorxe-interop-bench-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		binary = filepath.Join(dir, "gorxe")
		if err := build(ctx, binary); err != nil {
			return err
		}
	}
	say("booting two guests with kernel " + img.Release)
	l, err := lab.New(ctx, lab.Options{Image: img, Guests: 2, MTU: o.mtu})
	if err != nil {
		return interrupted(ctx, err)
	}
	defer l.Close()
	c := &comparison{o: o, server: l.Guests[0], client: l.Guests[1], say: say,
		trials: map[key][]trial{}}
	if err := c.install(ctx, binary); err != nil {
		return interrupted(ctx, err)
	}
	if err := c.measure(ctx); err != nil {
		return interrupted(ctx, err)
	}
	if o.json {
		return writeJSON(os.Stdout, c.results())
	}
	fmt.Printf("gorxe (%s) against rxe (%s), both sides in two emulated guests of one CPU, path MTU %d; medians of %d rounds\n\n",
		c.datapath, img.Release, pathMTU(o.mtu), c.rounds)
	return writeTable(os.Stdout, c.results())
}

// build builds the binary for the guests.
func build(ctx context.Context, to string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to,
		"./cmd/gorxe")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if out, err := cmd.CombinedOutput(); err != nil {
		return interrupted(ctx, fmt.Errorf("build gorxe: %w\n%s", err, out))
	}
	return nil
}

// interrupted replaces the errors that Ctrl-C or the time limit caused by one message.
func interrupted(ctx context.Context, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return errors.New("interrupted")
	case ctx.Err() != nil:
		return fmt.Errorf("time limit reached: choose fewer rounds or shorter runs: %w", err)
	}
	return err
}
