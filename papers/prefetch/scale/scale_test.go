package scale

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/papers/kit"
)

// If the rounds differ too much, the result has no ratio, and there is a warning.
func TestScatter(t *testing.T) {
	few := lane{name: nameQPs, qps: 64, mrs: 1, order: RoundRobin}
	many := few
	many.qps = 1000
	b := &bench{
		samples: map[lane][]sample{
			few:  {{rate: 1}, {rate: 1}, {rate: 1}},
			many: {{rate: 0.5}, {rate: 0.9}, {rate: 1.1}},
		},
	}
	r := &Report{Results: []Result{b.result(&few), b.result(&many)}}
	if x := r.Results[1]; x.Ratio != nil || x.Spread < 0.6 || x.Value != 0.9 {
		t.Errorf("result %+v, want no ratio and a spread of two thirds", x)
	}
	var warning bytes.Buffer
	r.Warn(&warning)
	const want = "No ratio for 1 result: the rounds differ too much (spread up to 67 %, limit 50 %)."
	if !strings.HasPrefix(warning.String(), want) {
		t.Errorf("Warn() wrote %q, want %q", warning.String(), want)
	}
	b.samples[many] = []sample{{rate: 0.8}, {rate: 0.9}, {rate: 1.0}}
	if x := b.result(&many); x.Ratio == nil || *x.Ratio != 0.9 {
		t.Errorf("result %+v, want ratio 0.9", x)
	}
}

// The memory of QPs and MRs is reported if there are enough of them: at most 1 KiB and 256 bytes,
// even if a table has just doubled.
func TestFootprint(t *testing.T) {
	d, err := openDevices(t.Context(), kit.Memory, 2*enough, 2*enough, []int{0, 0})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.size.qp < 500 || d.size.qp > 1024 || d.size.mr < 64 || d.size.mr > 256 {
		t.Errorf("footprint is %+v, want 500 to 1024 bytes per QP and 64 to 256 per MR", d.size)
	}
	got := d.size.String()
	if !strings.Contains(got, "bytes per QP without its rings; ") ||
		!strings.HasSuffix(got, "bytes per MR without its memory") {
		t.Errorf("footprint is written as %q", got)
	}
	if got := (footprint{}).String(); got != "" {
		t.Errorf("an unknown footprint is written as %q, want nothing", got)
	}
}

// The table explains an empty column of misses.
func TestAboutMisses(t *testing.T) {
	for _, c := range []struct {
		err      error
		userOnly bool
		want     string
	}{
		{nil, false, "with the kernel's"}, {nil, true, "without the kernel's"},
		{unix.EACCES, true, "perf_event_paranoid"}, {unix.EPERM, true, "perf_event_paranoid"},
		{unix.ENOENT, false, "no counter"},
		{unix.ENOSYS, false, "perf_event_open: function not implemented"},
	} {
		got := aboutMisses(&missCounter{fd: -1, userOnly: c.userOnly}, c.err)
		if !strings.Contains(got, c.want) {
			t.Errorf("aboutMisses(%v) = %q, want %q in it", c.err, got, c.want)
		}
	}
	m, err := newMissCounter()
	defer m.close()
	if n := m.read(); (n >= 0) != (err == nil) {
		t.Errorf("read() = %d after newMissCounter() returned %v", n, err)
	}
}

// The random order is uniform enough, and round robin is in order.
func TestPicker(t *testing.T) {
	p := newPicker(5, RoundRobin, seed)
	for i := range 20 {
		if got := p.pick(); got != i%5 {
			t.Fatalf("pick %d = %d, want %d", i, got, i%5)
		}
	}
	var seen [10]int
	p = newPicker(len(seen), Random, seed)
	for range 10_000 {
		seen[p.pick()]++
	}
	for i, n := range seen {
		if n < 800 || n > 1200 {
			t.Errorf("%d was picked %d times of 10,000, want about 1000", i, n)
		}
	}
}
