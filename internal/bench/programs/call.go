package programs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/osnet"
)

// CallCommand is the name of the hidden subcommand of "gorxe bench" that runs Call.
const CallCommand = "verbs-calls"

const (
	calls       = 20_000 // that are measured
	firstCalls  = 200    // that are not, before them
	idleTime    = 300 * time.Millisecond
	verbsDevice = "/dev/infiniband/uverbs0"
)

// callTimes is what Call prints at its end.
type callTimes struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
}

// Call is the program that "gorxe bench run" runs under "gorxe run". It opens the verbs device,
// writes a line, waits for one, makes calls that query the port, and writes their times.
func Call(in io.Reader, out io.Writer) error {
	fd, err := unix.Open(verbsDevice, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w: run this program with 'gorxe run'", verbsDevice, err)
	}
	defer unix.Close(fd)
	fmt.Fprintln(out, "ready")
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	lat := cli.NewLatency()
	var q portQuery
	for i := range firstCalls + calls {
		start := time.Now()
		if err := q.call(fd); err != nil {
			return fmt.Errorf("query the port: %w", err)
		}
		if i >= firstCalls {
			lat.Record(time.Since(start))
		}
	}
	return json.NewEncoder(out).Encode(callTimes{lat.Percentile(50), lat.Percentile(99)})
}

// callResult is the result of a run of Call.
type callResult struct {
	p50 float64 // microseconds
	rss float64 // bytes of the supervisor while the program waits
}

// calls runs Call under "gorxe run".
func (b *bench) calls(ctx context.Context) (r callResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, pairTimeout)
	defer cancel()
	p := b.command(ctx, []string{"run", "--dev", b.local.dev[0], "--socket", "none", "--", b.self,
		"bench", CallCommand})
	in, err := p.StdinPipe()
	if err != nil {
		return r, err
	}
	p.Stdout = nil
	pipe, err := p.StdoutPipe()
	if err != nil {
		return r, err
	}
	if err := p.Start(); err != nil {
		return r, err
	}
	out := bufio.NewReader(pipe)
	r, err = p.measure(ctx, in, out)
	_ = in.Close()
	if err != nil {
		cancel()
	}
	return r, errors.Join(err, p.wait())
}

// measure reads the memory of the idle supervisor, and then lets the program make its calls.
func (p *process) measure(ctx context.Context, in io.Writer, out *bufio.Reader) (
	r callResult, err error,
) {
	if _, err := out.ReadString('\n'); err != nil {
		return r, fmt.Errorf("start of %s: %w", p, err)
	}
	select {
	case <-time.After(idleTime):
	case <-ctx.Done():
		return r, context.Cause(ctx)
	}
	if r.rss, err = resident(p.Process.Pid); err != nil {
		return r, err
	}
	if _, err := io.WriteString(in, "go\n"); err != nil {
		return r, err
	}
	var t callTimes
	if err := json.NewDecoder(out).Decode(&t); err != nil {
		return r, fmt.Errorf("output of %s: %w", p, err)
	}
	r.p50 = float64(t.P50) / float64(time.Microsecond)
	return r, nil
}

// resident returns the bytes of memory that a process occupies.
func resident(pid int) (float64, error) {
	words, err := osnet.ProcessStatus(pid, "VmRSS")
	if err != nil {
		return 0, err
	}
	kib, err := strconv.ParseFloat(words[0], 64)
	return kib * 1024, err
}
