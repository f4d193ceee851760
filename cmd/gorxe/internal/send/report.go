package send

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/copyflags"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

const (
	// barTime is the time between two updates of the progress bar.
	barTime = 200 * time.Millisecond
	// maxFailures is the number of failures that the report lists; others are counted.
	maxFailures = 1000
)

// failure is a path that was not copied.
type failure struct {
	Path  string `json:"path"`
	Error string `json:"error"`
}

// report collects what has happened.
type report struct {
	Peer        string
	Datapath    string
	Block       int
	Streams     int
	Sum         record.Summary
	Sent        int64
	Interrupted bool

	out, diag io.Writer
	names     io.Writer // of a dry run
	dryRun    bool
	start     time.Time
	seconds   float64
	bar       *cli.Bar
	stop      chan struct{}
	running   sync.WaitGroup

	mu       sync.Mutex // functions of several goroutines print
	failures []failure
	failedN  int
	deletedN int
	listedN  int
	ignoredN int
}

func newReport(peer string, out, diag io.Writer, dryRun, asJSON bool) *report {
	r := &report{Peer: peer, out: out, diag: diag, names: out, dryRun: dryRun, start: time.Now(),
		stop: make(chan struct{})}
	if asJSON { // standard output has only the summary
		r.names = diag
	}
	return r
}

// begin shows the progress: entries and bytes, and how many there are, -1 if that is unknown.
func (r *report) begin(progress func() (entries, bytes, allEntries, allBytes int64)) {
	r.start = time.Now()
	if !cli.Visible(r.diag) || r.dryRun {
		return
	}
	r.bar = cli.NewBar(r.diag, -1, "", true)
	r.running.Go(func() {
		tick := time.NewTicker(barTime)
		defer tick.Stop()
		for {
			entries, bytes, allEntries, allBytes := progress()
			text := fmt.Sprintf("%d files", entries)
			if allEntries >= 0 {
				text = fmt.Sprintf("%d of %d files", entries, allEntries)
			}
			r.mu.Lock()
			r.bar.Describe(text)
			r.bar.Set(min(bytes, max(allBytes, bytes)), max(allBytes, -1))
			r.mu.Unlock()
			select {
			case <-r.stop:
				return
			case <-tick.C:
			}
		}
	})
}

// follow makes the report that of a whole copy. The earlier one covers the attempts before.
func (r *report) follow(earlier *report) {
	sum, was := &r.Sum, &earlier.Sum
	// What an earlier attempt has stored is skipped now. Blocks of files that it did not complete
	// are resumed, or sent again.
	sum.Skipped -= min(sum.Skipped, was.Stored)
	sum.Resumed -= min(sum.Resumed, uint64(max(0, earlier.Sent-int64(was.Bytes))))
	sum.Stored += was.Stored
	sum.Bytes += was.Bytes
	sum.Deleted += was.Deleted
	r.Sent += earlier.Sent
	r.seconds += r.start.Sub(earlier.start).Seconds()
	r.start = earlier.start
}

// end ends the progress bar.
func (r *report) end(now time.Time) {
	r.seconds = now.Sub(r.start).Seconds()
	close(r.stop)
	r.running.Wait()
	if r.bar != nil {
		r.bar.Clear()
	}
}

// line prints a line above the progress bar. The caller holds mu.
func (r *report) line(w io.Writer, format string, args ...any) {
	if r.bar != nil {
		r.bar.Clear()
	}
	fmt.Fprintf(w, format+"\n", args...)
}

func (r *report) failed(path string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failedN++
	if len(r.failures) == maxFailures {
		return
	}
	f := failure{copyflags.Name(path), copyflags.Name(err.Error())}
	r.failures = append(r.failures, f)
	r.line(r.diag, "%s: %s", f.Path, f.Error)
	if len(r.failures) == maxFailures {
		r.line(r.diag, "More failures are not listed.")
	}
}

func (r *report) deleted(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deletedN++
	if r.dryRun {
		r.line(r.names, "delete %s", copyflags.Name(path))
	}
}

func (r *report) listed(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listedN++
	r.line(r.names, "copy %s", copyflags.Name(path))
}

func (r *report) ignored(path, kind string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ignoredN++
	r.line(r.diag, "%s: not copied: it is a %s", copyflags.Name(path), kind)
}

// count returns the number of paths that were not copied.
func (r *report) count() int { return max(r.failedN, int(r.Sum.Failed)) }

// printed is what --json prints.
type printed struct {
	Peer        string    `json:"peer"`
	Datapath    string    `json:"datapath"`
	Block       int       `json:"block_bytes"`
	Streams     int       `json:"streams"`
	DryRun      bool      `json:"dry_run,omitempty"`
	ToCopy      int       `json:"to_copy,omitempty"` // with DryRun
	Stored      uint64    `json:"stored"`
	Skipped     uint64    `json:"skipped"`
	Deleted     uint64    `json:"deleted"`
	Failed      int       `json:"failed"`
	Ignored     int       `json:"ignored"`
	Bytes       uint64    `json:"bytes"`
	Sent        int64     `json:"sent_bytes"`
	Resumed     uint64    `json:"resumed_bytes"`
	Seconds     float64   `json:"seconds"`
	Rate        float64   `json:"gbps"`
	Interrupted bool      `json:"interrupted,omitempty"`
	Complete    bool      `json:"complete"`
	Failures    []failure `json:"failures,omitempty"`
}

// files describes a number of entries of all kinds.
func files(n int) string {
	if n == 1 {
		return "1 file"
	}
	return fmt.Sprintf("%d files and directories", n)
}

// print prints the summary. aborted means that the copy is not complete.
func (r *report) print(asJSON, aborted bool) error {
	s := r.Sum
	if asJSON {
		elapsed := time.Duration(r.seconds * float64(time.Second))
		return cli.JSON(r.out, printed{Peer: r.Peer, Datapath: r.Datapath, Block: r.Block,
			Streams: r.Streams, DryRun: r.dryRun, ToCopy: r.listedN, Stored: s.Stored,
			Skipped: s.Skipped, Deleted: s.Deleted, Failed: r.count(), Ignored: r.ignoredN,
			Bytes: s.Bytes, Sent: r.Sent, Resumed: s.Resumed, Seconds: cli.Round(r.seconds, 3),
			Rate: cli.Round(cli.Gbps(r.Sent, elapsed), 3), Interrupted: r.Interrupted,
			Complete: !aborted && r.count() == 0, Failures: r.failures})
	}
	if aborted {
		return nil // the error says what happened
	}
	if r.dryRun {
		_, err := fmt.Fprintf(r.names, "%s to copy, %d to delete\n", files(r.listedN), s.Deleted)
		return err
	}
	text := files(int(s.Stored)) + " copied"
	for _, p := range []struct {
		n    uint64
		text string
	}{{s.Skipped, "skipped"}, {s.Deleted, "deleted"}, {uint64(r.ignoredN), "special"},
		{uint64(r.count()), "failed"}} {
		if p.n > 0 {
			text += fmt.Sprintf(", %d %s", p.n, p.text)
		}
	}
	text += fmt.Sprintf(": %s in %.2f s, %s", copyflags.Bytes(r.Sent), r.seconds,
		copyflags.Rate(r.Sent, r.seconds))
	if s.Resumed > 0 {
		text += fmt.Sprintf(" (and %s from an earlier run)", copyflags.Bytes(int64(s.Resumed)))
	}
	_, err := fmt.Fprintln(r.out, text)
	return err
}
