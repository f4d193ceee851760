package indirect

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// manualPair creates two endpoints that the test drives, connected without the connection manager.
func manualPair(t testing.TB, link *loopback.Link, ca, cb Config, opts ...[]roce.Option) (
	a, b *end) {
	t.Helper()
	more := func(i int) []roce.Option {
		if i < len(opts) {
			return opts[i]
		}
		return nil
	}
	a = newEnd(t, newDevice(t, link, 0, append(more(0), roce.WithProgress(roce.Manual))...), ca)
	b = newEnd(t, newDevice(t, link, 1, append(more(1), roce.WithProgress(roce.Manual))...), cb)
	joinEnds(t, a, b)
	return a, b
}

// joinEnds connects two endpoints without the connection manager.
func joinEnds(t testing.TB, a, b *end) {
	t.Helper()
	var err error
	if a.conn, err = a.Prepare(); err != nil {
		t.Fatal(err)
	}
	if b.conn, err = b.Prepare(); err != nil {
		t.Fatal(err)
	}
	atA, toA := a.conn.Local()
	atB, toB := b.conn.Local()
	if err := a.conn.Join(within(t), atB, toB); err != nil {
		t.Fatal(err)
	}
	if err := b.conn.Join(within(t), atA, toA); err != nil {
		t.Fatal(err)
	}
}

// TestNoAllocations checks that a transfer does not allocate, directly or indirectly.
func TestNoAllocations(t *testing.T) {
	for _, c := range []struct {
		name string
		kind Kind
		frp  float64
		want func(a, b *end) bool // it took the expected way
	}{
		{"direct", Write, 0, func(a, b *end) bool { return a.conn.Counters().Direct > 0 }},
		{"indirect", Write, 0.5, func(a, b *end) bool { return b.conn.Counters().Parked > 0 }},
		{"read", Read, 0, func(a, b *end) bool { return b.conn.Counters().ReadDirect > 0 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			link, err := loopback.NewLink(loopback.Config{})
			if err != nil {
				t.Fatal(err)
			}
			a, b := manualPair(t, link, Config{Timeout: 200 * time.Microsecond},
				Config{Faults: Faults{Seed: 1, FailedRegistration: c.frp}})
			var evs [4]Event
			x := Transfer{Kind: c.kind, MR: a.mr, Len: size, DBA: size}
			one := func() {
				if err := a.conn.Post(&x); err != nil {
					t.Fatal(err)
				}
				for end := time.Now().Add(30 * time.Second); ; {
					if time.Now().After(end) {
						t.Fatal("the transfer did not end within 30 s")
					}
					b.Poll(evs[:])
					for _, ev := range evs[:a.Poll(evs[:])] {
						if ev.Kind == Done {
							if ev.Status != StatusOK {
								t.Fatal(ev.Status)
							}
							return
						}
					}
				}
			}
			for range 20 {
				one()
			}
			if n := testing.AllocsPerRun(50, one); n != 0 {
				t.Errorf("%v allocations a transfer", n)
			}
			if !c.want(a, b) {
				t.Error("the transfers took another way")
			}
		})
	}
}
