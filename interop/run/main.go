// Command run runs gorxe's interoperability tests against kernel rxe in virtual machines and prints
// a table: scenario, gorxe's role, IP version, path MTU, result, time.
//
//	go run ./interop/run             everything
//	go run ./interop/run -core       the part for CI
//	go run ./interop/run -run 'TestVerbs/RC_READ'
//	go run ./interop/run -debian trixie  with guests of Debian 13
//
// It needs root and a Debian archive, from which it installs what this host lacks (qemu, gcc) and
// builds the guest (kept in the user's cache folder). A pcap of each failed scenario goes to the
// folder of -out. The exit status is 0 if every scenario passed, 1 if one failed, 2 for wrong
// usage.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/interop/peer"
)

type options struct {
	core    bool
	run     string
	out     string
	mode    string
	debian  string
	timeout time.Duration
	refresh bool
	verbose bool
}

func main() {
	var o options
	flag.BoolVar(&o.core, "core", false, "only the core of the matrix")
	flag.StringVar(&o.run, "run", "", "regular expression that selects tests, as in go test -run")
	flag.StringVar(&o.out, "out", "bin/interop",
		"folder for pcaps of failures and the complete log")
	flag.StringVar(&o.mode, "mode", "auto",
		"XDP mode of gorxe's interface: auto, generic or native")
	flag.StringVar(&o.debian, "debian", "",
		"Debian release of the guests; trixie brings Linux 6.12 (default: this host's)")
	flag.DurationVar(&o.timeout, "timeout", 0,
		"give up after this time (0: 90 min, with -core 15 min)")
	flag.BoolVar(&o.refresh, "refresh", false,
		"build the guest again from the packages that the archive has today")
	flag.BoolVar(&o.verbose, "v", false, "print a line for each scenario as it ends")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "interop: unexpected argument %q (see -h)\n", flag.Arg(0))
		os.Exit(2)
	}
	if o.timeout <= 0 {
		if o.timeout = 90 * time.Minute; o.core {
			o.timeout = 15 * time.Minute
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := play(ctx, &o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "interop:", err)
	}
	if err != nil || failed > 0 {
		os.Exit(1)
	}
}

// play runs the tests and prints the table. It returns the number of failed scenarios.
func play(ctx context.Context, o *options) (failed int, err error) {
	if os.Geteuid() != 0 {
		return 0, fmt.Errorf("network namespaces and AF_XDP need root: run it as root")
	}
	say := func(s string) { fmt.Fprintln(os.Stderr, "interop:", s) }
	if err := image.Install(ctx, say); err != nil {
		return 0, err
	}
	img, err := image.Get(ctx,
		image.Options{Debian: o.debian, Module: ".", Peers: peer.Sources(), Log: say,
			Refresh: o.refresh})
	if err != nil {
		return 0, err
	}
	say("guest kernel " + img.Release + ", packages in " + img.Packages)
	if o.out, err = filepath.Abs(o.out); err != nil {
		return 0, err
	}
	if err := os.RemoveAll(o.out); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return 0, err
	}
	log, err := os.Create(filepath.Join(o.out, "log.txt"))
	if err != nil {
		return 0, err
	}
	defer log.Close()
	return test(ctx, o, log)
}

// test runs go test and follows its events.
func test(ctx context.Context, o *options, log io.Writer) (failed int, err error) {
	args := []string{"test", "-tags", "interop", "-count=1", "-json", "-timeout",
		o.timeout.String()}
	if o.run != "" {
		args = append(args, "-run", o.run)
	}
	args = append(args, "./interop", "-args", "-must", "-out", o.out, "-mode", o.mode, "-debian",
		o.debian)
	if o.core {
		args = append(args, "-core")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr
	// An interrupt goes to the tests, which clean up. They get some time for it.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	tab := newTable()
	if o.verbose {
		tab.each = func(r *row) { fmt.Fprintln(os.Stderr, "interop:", r) }
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		if text := tab.take(lines.Bytes()); text != "" {
			io.WriteString(log, text)
			if strings.HasPrefix(text, "interop: ") { // what the tests report about the guests
				io.WriteString(os.Stderr, text)
			}
		}
	}
	waitErr := cmd.Wait()
	tab.abandon()
	if err := tab.write(os.Stdout, time.Since(start)); err != nil {
		return 0, err
	}
	switch {
	case ctx.Err() != nil:
		return tab.failed(), fmt.Errorf("interrupted")
	case tab.failed() == 0 && waitErr != nil:
		return 0, fmt.Errorf("go test: %w; the complete log is %s/log.txt", waitErr, o.out)
	case len(tab.rows) == 0:
		return 0, fmt.Errorf("no scenario ran: does -run %q match any?", o.run)
	case tab.failed() > 0:
		fmt.Printf("pcaps and the complete log: %s\n", o.out)
	}
	return tab.failed(), nil
}
