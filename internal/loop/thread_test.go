package loop

import (
	"bytes"
	"math/rand/v2"
	"runtime/pprof"
	"testing"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// watching is a Port that claims to sleep in the kernel.
type watching struct{ driver.Port }

func (watching) Watch(int)     {}
func (watching) Watched() bool { return false }

// Switches between threads make up most of the time of a link in memory if its progress goroutines
// are locked to their threads.
func TestLockedToThread(t *testing.T) {
	for _, c := range []struct {
		name   string
		kernel bool
		cpu    int
		want   bool
	}{
		{"in memory", false, -1, false}, {"in memory, pinned", false, 0, true},
		{"in the kernel", true, -1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			link, err := loopback.NewLink(loopback.Config{})
			must(t, err)
			var port driver.Port = link.Port(0)
			if c.kernel {
				port = loopback.Inject(watching{port}, 1, loopback.Plan{})
			}
			random := rand.New(rand.NewPCG(1, 2)).Uint64
			table, err := mr.NewTable(mr.Config{Rand: random})
			must(t, err)
			eng, err := qp.NewEngine(qp.Config{MRs: table, Rand: random})
			must(t, err)
			l := New(Config{Port: port, Engine: eng, Host: noHost{}})
			must(t, l.Start(c.cpu))
			if got := progressLocked(t); got != c.want {
				t.Errorf("the progress goroutine is locked to its thread: %t, want %t", got, c.want)
			}
			must(t, l.Stop())
		})
	}
}

// progressLocked reports whether the only progress goroutine is locked to a thread.
func progressLocked(t *testing.T) bool {
	t.Helper()
	var b bytes.Buffer
	must(t, pprof.Lookup("goroutine").WriteTo(&b, 2))
	for _, g := range bytes.Split(b.Bytes(), []byte("\n\n")) {
		if bytes.Contains(g, []byte("(*Loop).run(")) {
			state, _, _ := bytes.Cut(g, []byte("\n"))
			return bytes.Contains(state, []byte("locked to thread"))
		}
	}
	t.Fatal("there is no progress goroutine")
	return false
}
