package roce

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// region returns memory of n bytes that has no remote rights and allows memory windows.
func (e *end) region(t *testing.T, n int) *MR {
	t.Helper()
	m, err := e.pd.AllocMR(n, LocalWrite|MWBind)
	must(t, err)
	return m
}

// TestWindows: a window gives the peer access to a part of memory until it is invalidated. A region
// with bound windows cannot be closed.
func TestWindows(t *testing.T) {
	for _, typ := range []MWType{MWType1, MWType2} {
		t.Run(typ.String(), func(t *testing.T) {
			bothModes(t, func(t *testing.T, p Progress) {
				leakCheck(t)
				a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
				m := b.region(t, 4096)
				w, err := b.pd.AllocMW(typ)
				must(t, err)
				if w.Type() != typ || w.PD() != b.pd || w.RKey() != 0 {
					t.Error("the new window has an R_Key, or another type or PD")
				}
				key, err := b.qp.BindMW(w,
					MWBindAttr{ID: 5, Flags: Signaled, SGE: m.SGE(64, 64), Access: RemoteWrite})
				must(t, err)
				pollOK(t, 5, WCBindMW, b.cq, a.cq)
				if w.RKey() != key {
					t.Errorf("RKey() = %#x, want %#x from NextRKey", w.RKey(), key)
				}
				want := fill(a.mr.Bytes()[:64], 1)
				write := SendWR{ID: 1, Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 64)},
					RemoteAddr: m.Addr() + 64, RKey: key}
				must(t, a.qp.PostSend(write))
				pollOK(t, 1, WCWrite, a.cq, b.cq)
				if !bytes.Equal(m.Bytes()[64:128], want) {
					t.Error("data differs")
				}
				if err := m.Close(); !errors.Is(err, ErrInUse) {
					t.Errorf("Close of a region with a window: %v", err)
				}

				if typ == MWType1 {
					_, err = b.qp.BindMW(w, MWBindAttr{ID: 6, Flags: Signaled})
					must(t, err)
					pollOK(t, 6, WCBindMW, b.cq, a.cq)
				} else {
					must(t, b.qp.PostSend(SendWR{ID: 6, Op: OpLocalInv, Flags: Signaled,
						InvKey: key}))
					pollOK(t, 6, WCLocalInv, b.cq, a.cq)
				}
				must(t, m.Close())
				must(t, a.qp.PostSend(write))
				if wc := poll(t, 1, a.cq, b.cq)[0]; wc.Status != RemAccessErr {
					t.Errorf("WRITE with an old key: %v", wc.Status)
				}
				if err := b.pd.Close(); !errors.Is(err, ErrInUse) {
					t.Errorf("Close of a PD with a window: %v", err)
				}
				must(t, w.Close())
				must(t, w.Close())
				if _, err := w.NextRKey(); !errors.Is(err, ErrClosed) {
					t.Errorf("NextRKey of a closed window: %v", err)
				}
			})
		})
	}
}

// TestBindErrors: errors of BindMW, and errors in its completion.
func TestBindErrors(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	m := b.region(t, 64)
	w, err := b.pd.AllocMW(MWType2)
	must(t, err)
	if _, err := a.qp.BindMW(w, MWBindAttr{SGE: m.SGE(0, 8)}); !errors.Is(err, ErrForeign) {
		t.Errorf("BindMW with a window of another device: %v", err)
	}
	if _, err := b.pd.AllocMW(7); !errors.Is(err, ErrMemoryAccess) {
		t.Errorf("AllocMW with an unknown type: %v", err)
	}
	key, err := w.NextRKey()
	must(t, err)
	must(t, b.qp.PostSend(
		// The region has no MWBind.
		SendWR{ID: 1, Op: OpBindMW, Flags: Signaled, RKey: key, SGEs: []SGE{b.mr.SGE(0, 8)},
			Access: RemoteRead},
		SendWR{ID: 2, Op: OpSend}))
	wcs := poll(t, 2, b.cq, a.cq)
	if wcs[0].ID != 1 || wcs[0].Status != MWBindErr || wcs[1].Status != WRFlushErr ||
		b.qp.State() != StateErr {
		t.Errorf("%v then %v, QP in %v", wcs[0].Status, wcs[1].Status, b.qp.State())
	}
	must(t, b.qp.Close())
	if _, err := b.qp.BindMW(w, MWBindAttr{SGE: m.SGE(0, 8)}); !errors.Is(err, ErrClosed) {
		t.Errorf("BindMW on a closed QP: %v", err)
	}
}

// TestFastMR: one list of work requests registers memory and tells the peer its key. The peer uses
// the memory, then invalidates the key with a SEND.
func TestFastMR(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		f, err := b.pd.AllocFastMR(4096)
		must(t, err)
		if f.PD() != b.pd {
			t.Error("PD")
		}
		for i := range 5 {
			mem := make([]byte, 100*(i+1))
			reg, err := f.Prepare(mem, LocalWrite|RemoteWrite)
			must(t, err)
			must(t, a.qp.PostRecv(RecvWR{ID: 1, SGEs: []SGE{a.mr.SGE(1000, 64)}}))
			tell := binary.BigEndian.AppendUint64(nil, reg.Remote().Addr)
			tell = binary.BigEndian.AppendUint32(tell, uint32(reg.Remote().RKey))
			must(t, b.qp.PostRecv(RecvWR{ID: 2}))
			must(t, b.qp.PostSend(
				SendWR{ID: 3, Op: OpRegMR, Flags: Signaled, RKey: reg.RKey()},
				SendWR{Op: OpSend, Inline: tell}))
			pollOK(t, 3, WCRegMR, b.cq, a.cq)
			pollOK(t, 1, WCRecv, a.cq, b.cq)
			received := a.mr.Bytes()[1000:]
			addr, key := binary.BigEndian.Uint64(received), RKey(binary.BigEndian.Uint32(received[8:]))
			want := fill(a.mr.Bytes()[:len(mem)], uint64(i))
			must(t, a.qp.PostSend(
				SendWR{ID: 4, Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, len(mem))}, RemoteAddr: addr,
					RKey: key},
				SendWR{ID: 5, Op: OpSendInv, InvKey: key, Flags: Signaled}))
			pollOK(t, 5, WCSend, a.cq, b.cq)
			if wc := pollOK(t, 2, WCRecv, b.cq, a.cq); wc.Flags&WCWithInv == 0 || wc.InvKey != key {
				t.Errorf("%+v", wc)
			}
			if !bytes.Equal(mem, want) || reg.Registered() {
				t.Error("the memory differs, or is still registered")
			}
		}
		reg, err := f.Prepare(make([]byte, 8), MWBind)
		must(t, err)
		w, err := b.pd.AllocMW(MWType1)
		must(t, err)
		must(t, b.qp.PostSend(SendWR{Op: OpRegMR, RKey: reg.RKey()}))
		_, err = b.qp.BindMW(w,
			MWBindAttr{ID: 6, Flags: Signaled, SGE: reg.SGE(0, 8), Access: RemoteRead})
		must(t, err)
		pollOK(t, 6, WCBindMW, b.cq, a.cq)
		if err := f.Close(); !errors.Is(err, ErrInUse) {
			t.Errorf("Close of a fast MR with a window: %v", err)
		}
		must(t, w.Close())
		must(t, f.Close())
		must(t, f.Close())
		if _, err := f.Prepare(make([]byte, 8), 0); !errors.Is(err, ErrClosed) {
			t.Errorf("Prepare on a closed fast MR: %v", err)
		}
		if _, err := b.pd.AllocFastMR(0); !errors.Is(err, ErrMemoryLength) {
			t.Errorf("AllocFastMR(0): %v", err)
		}
	})
}

// TestFlushAndAtomicWrite: a writes, flushes, and commits with an ATOMIC WRITE. b's memory has
// WithPersist.
func TestFlushAndAtomicWrite(t *testing.T) {
	for name, plan := range map[string]loopback.Plan{"clean": {},
		"lossy": {Loss: 0.05, Duplicate: 0.05, Reorder: 0.05}} {
		t.Run(name, func(t *testing.T) {
			bothModes(t, func(t *testing.T, p Progress) {
				a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)},
					link: loopback.Config{Seed: 7, Plan: plan}})
				var flushed atomic.Int64
				mem := make([]byte, 1<<16)
				m, err := b.pd.RegisterMR(mem, LocalWrite|RemoteWrite|FlushGlobal,
					WithPersist(func(b []byte) error {
						flushed.Add(int64(len(b)))
						return nil
					}))
				must(t, err)
				if m.Access()&FlushPersistent == 0 {
					t.Error("WithPersist does not add FlushPersistent")
				}
				fill(a.mr.Bytes(), 1)
				const rounds = 30
				for i := range uint64(rounds) {
					must(t, a.qp.PostSend(
						SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 3000)},
							RemoteAddr: m.Addr() + 8, RKey: m.RKey()},
						SendWR{ID: 1, Op: OpFlush, Flags: Signaled, RemoteAddr: m.Addr() + 8,
							Length: 3000, RKey: m.RKey(), Placement: PlaceGlobal | PlacePersistent},
						SendWR{ID: 2, Op: OpAtomicWrite, Flags: Signaled,
							Inline:     binary.NativeEndian.AppendUint64(nil, i+1),
							RemoteAddr: m.Addr(), RKey: m.RKey()}))
					pollOK(t, 1, WCFlush, a.cq, b.cq)
					pollOK(t, 2, WCAtomicWrite, a.cq, b.cq)
					if got := m.Load64(0); got != i+1 {
						t.Fatalf("committed %d, want %d", got, i+1)
					}
				}
				if n := flushed.Load(); n != 3000*rounds {
					t.Errorf("%d bytes made persistent, want %d", n, 3000*rounds)
				}
				if name == "lossy" {
					return // the NAK may be lost
				}
				must(t, a.qp.PostSend(SendWR{ID: 3, Op: OpFlush, RemoteAddr: b.mr.Addr(), Length: 8,
					RKey: b.mr.RKey(), Placement: PlacePersistent}))
				if wc := poll(t, 1, a.cq, b.cq)[0]; wc.Status != RemAccessErr {
					t.Errorf("FLUSH to persistence without WithPersist: %v", wc.Status)
				}
			})
		})
	}
	_, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	if _, err := b.pd.RegisterMR(make([]byte, 8), FlushPersistent); !errors.Is(err,
		ErrMemoryAccess) {
		t.Errorf("FlushPersistent without WithPersist: %v", err)
	}
}

// TestCloseWithWindows: Close of the device destroys bound windows and registrations.
func TestCloseWithWindows(t *testing.T) {
	leakCheck(t)
	_, b := newRig(t, rigConfig{})
	m := b.region(t, 4096)
	for _, typ := range []MWType{MWType1, MWType2} {
		w, err := b.pd.AllocMW(typ)
		must(t, err)
		_, err = b.qp.BindMW(w,
			MWBindAttr{ID: 1, Flags: Signaled, SGE: m.SGE(0, 8), Access: RemoteRead})
		must(t, err)
		pollOK(t, 1, WCBindMW, b.cq)
	}
	f, err := b.pd.AllocFastMR(64)
	must(t, err)
	reg, err := f.Prepare(make([]byte, 64), RemoteRead)
	must(t, err)
	must(t, b.qp.PostSend(SendWR{ID: 2, Op: OpRegMR, Flags: Signaled, RKey: reg.RKey()}))
	pollOK(t, 2, WCRegMR, b.cq)
	must(t, b.Device.Close())
	if reg.Registered() || m.Registered() || b.Device.mrs.MRs() != 0 || b.Device.mrs.PDs() != 0 {
		t.Error("objects are left over")
	}
	if _, err := b.pd.AllocMW(MWType1); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := b.pd.AllocFastMR(8); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if err := b.qp.PostSend(SendWR{Op: OpLocalInv}); !errors.Is(err, ErrClosed) &&
		!errors.Is(err, ErrQPState) {
		t.Error(err)
	}
}
