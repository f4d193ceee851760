package recv

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/copyflags"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy/rdma"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// printed is what --json prints.
type printed struct {
	Peer    string  `json:"peer"`
	Pull    bool    `json:"pull,omitempty"`
	DryRun  bool    `json:"dry_run,omitempty"`
	Target  string  `json:"target"`
	Stored  uint64  `json:"stored"`
	Skipped uint64  `json:"skipped"`
	Deleted uint64  `json:"deleted"`
	Failed  uint64  `json:"failed"`
	Ignored int64   `json:"ignored,omitempty"`
	Bytes   uint64  `json:"bytes"`
	Resumed uint64  `json:"resumed_bytes"`
	Seconds float64 `json:"seconds"`
	Error   string  `json:"error,omitempty"`
}

// print prints what a client has done. Clients can cause any number of reports, so their number is
// limited.
func (s *server) print(peer netip.Addr, r *rdma.Report, d time.Duration, err error) {
	if errors.Is(err, source.ErrFailed) {
		err = nil // the summary says so
	}
	if !s.once && !s.peers.ShowSession(peer) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := r.Sum
	if r.Pull {
		sum = r.Result.Sink
		sum.Failed = max(sum.Failed, uint64(r.Result.Failed))
	}
	if s.json {
		p := printed{Peer: peer.String(), Pull: r.Pull, DryRun: r.DryRun, Target: r.Target,
			Stored: sum.Stored, Skipped: sum.Skipped, Deleted: sum.Deleted, Failed: sum.Failed,
			Ignored: r.Result.Ignored, Bytes: sum.Bytes, Resumed: sum.Resumed,
			Seconds: cli.Round(d.Seconds(), 3)}
		if err != nil {
			p.Error = oneLine(err)
		}
		_ = cli.JSON(s.out, p) // nobody reads it
		return
	}
	what := "from"
	if r.Pull {
		what = "to"
	}
	text := fmt.Sprintf("%s %v: %d copied, %s in %.2f s, %d skipped, %d failed", what, peer,
		sum.Stored, copyflags.Bytes(int64(sum.Bytes)), d.Seconds(),
		sum.Skipped, sum.Failed)
	if sum.Deleted > 0 {
		text += fmt.Sprintf(", %d deleted", sum.Deleted)
	}
	if r.Result.Ignored > 0 {
		text += fmt.Sprintf(", %d special", r.Result.Ignored)
	}
	if r.DryRun {
		text += " (dry run)"
	}
	if err != nil {
		text += ": " + oneLine(err)
	}
	fmt.Fprintln(s.out, text)
}

// name returns a name that a peer has chosen for the log.
func name(path string) string { return copyflags.Name(path) }

// oneLine returns an error that may contain text of a peer for the log.
func oneLine(err error) string { return copyflags.Name(err.Error()) }
