package indirect

import (
	"bytes"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// registrar is a Host that registers memory for each transfer and deregisters it afterwards, as the
// paper's upper layer does.
type registrar struct {
	pd       *roce.PD
	mem      []byte
	live     int
	refusals int // refusals to come
}

func (h *registrar) Register(r *Request) (Region, bool) {
	if h.refusals > 0 {
		h.refusals--
		return Region{}, false
	}
	mr, err := h.pd.RegisterMR(h.mem[r.DBA:][:r.Len], roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return Region{}, false
	}
	h.live++
	return Region{MR: mr}, true
}

func (h *registrar) Release(_ *Request, m Region, _ bool) {
	if m.MR.Close() == nil {
		h.live--
	}
}

// Memory may be registered per transfer, with both kinds of progress. Its key ends with the
// transfer.
func TestRegistersForEachTransfer(t *testing.T) {
	for _, p := range []roce.Progress{roce.Auto, roce.Manual} {
		t.Run(p.String(), func(t *testing.T) {
			link, err := loopback.NewLink(loopback.Config{})
			if err != nil {
				t.Fatal(err)
			}
			h := &registrar{mem: make([]byte, 4*size)}
			dev := newDevice(t, link, 1, roce.WithProgress(p))
			if h.pd, err = dev.AllocPD(); err != nil {
				t.Fatal(err)
			}
			a := newEnd(t, newDevice(t, link, 0, roce.WithProgress(p)),
				Config{Timeout: time.Millisecond})
			e, err := New(dev, h.pd, Config{Host: h})
			if err != nil {
				t.Fatal(err)
			}
			b := &end{Endpoint: e, dev: dev}
			t.Cleanup(func() { _ = e.Close() })
			joinEnds(t, a, b)
			var evs [4]Event
			for k := range 8 {
				h.refusals = k % 3
				want := fill(a.mr.Bytes()[:size], uint64(k))
				if err := a.conn.Post(&Transfer{Kind: Write, MR: a.mr, Len: size,
					DBA: uint64(k % 4 * size)}); err != nil {
					t.Fatal(err)
				}
				for done, end := false, time.Now().Add(30*time.Second); !done; {
					b.Poll(evs[:])
					for _, ev := range evs[:a.Poll(evs[:])] {
						if done = ev.Kind == Done; done && ev.Status != StatusOK {
							t.Fatal(ev.Status)
						}
					}
					if time.Now().After(end) {
						t.Fatal("the transfer did not end within 30 s")
					}
				}
				if !bytes.Equal(h.mem[k%4*size:][:size], want) {
					t.Fatalf("transfer %d: data differs", k)
				}
			}
			if c := b.conn.Counters(); h.live != 0 || c.Delivered != 8 || c.Parked == 0 {
				t.Errorf("%d registrations are left; %+v", h.live, c)
			}
		})
	}
}

// A Host that returns memory too small for the transfer counts as one that refuses.
func TestBadRegion(t *testing.T) {
	h := &badHost{}
	a, b := newPair(t, loopback.Plan{}, Config{Timeout: time.Millisecond, Patience: time.Second},
		Config{Host: h})
	h.mr = b.mr
	if err := a.conn.Write(within(t), a.mr, 0, size, 0); !refused(err) {
		t.Errorf("%v; want ErrTransfer, %v", err, StatusRefused)
	}
	if c := b.conn.Counters(); c.Registered != 0 || c.Refused == 0 {
		t.Errorf("%+v", c)
	}
}

type badHost struct{ mr *roce.MR }

func (h *badHost) Register(r *Request) (Region, bool) {
	return Region{MR: h.mr, Off: rigMem - 1}, true
}
func (h *badHost) Release(*Request, Region, bool) {}

// Faults keep their probability, and attempts are independent.
func TestFaults(t *testing.T) {
	for _, p := range []float64{0.01, 0.1, 0.5} {
		first, both, n := 0.0, 0.0, 0.0
		for seed := range uint64(20) {
			f := Faults{Seed: seed, FailedRegistration: p}
			for tid := range TID(5000) {
				a, b := f.fails(tid, 1), f.fails(tid, 2)
				n++
				if a {
					first++
				}
				if a && b {
					both++
				}
			}
		}
		if got := first / n; got < 0.9*p || got > 1.1*p {
			t.Errorf("%v of first attempts fail; want %v", got, p)
		}
		if got := both / n; p >= 0.1 && (got < 0.9*p*p || got > 1.1*p*p) {
			t.Errorf("%v of first and second attempts fail; want %v", got, p*p)
		}
	}
}
