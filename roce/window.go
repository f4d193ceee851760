package roce

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/mr"
)

// MWType is the type of a memory window (ibv_mw_type).
type MWType uint8

// The types of memory windows.
const (
	// MWType1 is bound through any QP of its PD and serves every QP of the PD. Binding it again
	// replaces the previous binding; binding it to no bytes ends the binding.
	MWType1 MWType = 1
	// MWType2 is bound through one QP and serves only that QP (type 2B). It must be invalidated
	// before it is bound again, by an OpLocalInv on that QP or an OpSendInv of the peer.
	MWType2 MWType = 2
)

// String returns the name of the type.
func (t MWType) String() string { return mr.WindowType(t).String() }

// MW is a memory window. While it is bound, it gives peers access to a part of a memory region,
// with its own access rights. Binding and invalidating are work requests, and much cheaper than
// registering memory. The region needs the right MWBind; it needs no remote rights itself.
type MW struct {
	pd     *PD
	w      *mr.Window
	closed bool // guarded by Device.ctl
}

// AllocMW creates a memory window that is not bound.
//
// Errors: ErrMemoryAccess for an unknown type, ErrTooMany, ErrClosed.
func (p *PD) AllocMW(t MWType) (*MW, error) { return p.allocMW(t, p.dev.mrs.AllocWindow) }

func (p *PD) allocMW(t MWType, alloc func(*mr.PD, mr.WindowType) (*mr.Window, error)) (*MW, error) {
	w := &MW{pd: p}
	err := p.create("a memory window", func() (err error) {
		if w.w, err = alloc(p.pd, mr.WindowType(t)); err == nil {
			p.dev.mws[w] = struct{}{}
			p.add(w)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// Type returns the window's type.
func (w *MW) Type() MWType { return MWType(w.w.Type()) }

// PD returns the window's protection domain.
func (w *MW) PD() *PD { return w.pd }

// RKey returns the key with which peers use the window, or 0 while it is not bound.
func (w *MW) RKey() RKey { return RKey(w.w.RKey()) }

// NextRKey returns the key that the window gets with its next bind, for SendWR.RKey of an OpBindMW.
// In verbs the program chooses the low byte of the key (ibv_inc_rkey); here the device chooses the
// whole key, and never returns one twice. The key gives no access before the bind has run, and is
// good for one bind.
//
// Errors: ErrTooMany if too many keys of the window are unused, ErrKeysExhausted, ErrClosed.
func (w *MW) NextRKey() (RKey, error) {
	d := w.pd.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	return w.nextRKey()
}

func (w *MW) nextRKey() (RKey, error) {
	if w.closed {
		return 0, fmt.Errorf("%w: the memory window", ErrClosed)
	}
	key, err := w.pd.dev.mrs.NextRKey(w.w)
	if err != nil {
		return 0, fmt.Errorf("roce: next key of a memory window: %w", err)
	}
	return RKey(key), nil
}

// Close destroys the window, bound or not, and returns when no packet can use it any more. Closing
// twice is harmless.
func (w *MW) Close() error {
	return w.pd.dev.closeMemory(&w.closed, w.kill, nothing)
}

func nothing() error { return nil }

// kill destroys the window. The caller holds ctl.
func (w *MW) kill() error {
	w.closed = true
	delete(w.pd.dev.mws, w)
	w.pd.remove(w)
	// The only error means that the window was freed before.
	_ = w.pd.dev.mrs.FreeWindow(w.w)
	return nil
}

// MWBindAttr describes a bind of a memory window (ibv_mw_bind).
type MWBindAttr struct {
	ID     uint64 // of the completion
	Flags  SendFlags
	SGE    SGE    // part of a region with MWBind; no bytes: end the binding (type 1)
	Access Access // remote rights that the window grants; with type 2 also ZeroBased
}

// BindMW posts an OpBindMW and returns the window's new key. A work request that is posted after it
// may already send the key to the peer. If the bind itself fails (bounds, rights), it completes
// with status MWBindErr, and the QP goes to ERR. BindMW may wait for other goroutines that create
// or close objects. To avoid that on the data path, obtain keys in advance with NextRKey and post
// OpBindMW.
//
// Errors: those of NextRKey and PostSend, and ErrForeign.
func (q *QP) BindMW(w *MW, a MWBindAttr) (RKey, error) {
	d := q.device()
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if w.pd.dev != d {
		return 0, ErrForeign
	}
	key, err := w.nextRKey()
	if err != nil {
		return 0, err
	}
	wr := SendWR{ID: a.ID, Op: OpBindMW, Flags: a.Flags, RKey: key, Access: a.Access}
	if a.SGE.Length > 0 {
		wr.SGEs = []SGE{a.SGE}
	}
	if err := q.PostSend(wr); err != nil {
		d.mrs.DropRKey(w.w, mr.Key(key))
		return 0, err
	}
	return key, nil
}

// FastMR is a memory region that is registered by work requests (fast registration). Prepare sets
// its memory and returns its keys, OpRegMR makes them valid, in the order of the send queue, and
// OpLocalInv or the peer's OpSendInv invalidates them. Then Prepare can be called again.
type FastMR struct {
	pd     *PD
	f      *mr.FastMR
	closed bool // guarded by Device.ctl
}

// AllocFastMR creates a fast memory region for at most max bytes. They count for Limits.Memory
// until Close.
//
// Errors: ErrMemoryLength, ErrTooMany, ErrNoMemory, ErrClosed.
func (p *PD) AllocFastMR(max int) (*FastMR, error) {
	f := &FastMR{pd: p}
	err := p.create("a fast memory region", func() (err error) {
		if f.f, err = p.dev.mrs.AllocFastMR(p.pd, max); err != nil {
			return err
		}
		if err = p.dev.charge(max, "a fast memory region"); err != nil {
			return errors.Join(err, p.dev.mrs.FreeFastMR(f.f))
		}
		p.dev.fasts[f] = struct{}{}
		p.add(f)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

// PD returns the protection domain.
func (f *FastMR) PD() *PD { return f.pd }

// FastReg is one registration of a FastMR. Its keys can be used in work requests that are posted
// after the OpRegMR:
//
//	qp.PostSend(
//		roce.SendWR{Op: roce.OpRegMR, RKey: reg.RKey()},
//		roce.SendWR{Op: roce.OpSend, ...}, // tells the peer reg.Remote()
//	)
type FastReg struct{ region }

// Prepare sets the memory and the access rights of the next registration. The caller keeps mem, and
// must not reuse it or release it before the registration has ended (the completion of OpLocalInv,
// or a receive with WCWithInv) or Close has returned. The options are those of RegisterMR, except
// WithPersist.
//
// Errors: those of RegisterMR.
func (f *FastMR) Prepare(mem []byte, access Access, opts ...MROption) (*FastReg, error) {
	d := f.pd.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if f.closed {
		return nil, fmt.Errorf("%w: the fast memory region", ErrClosed)
	}
	c := d.mrOptions(mem, access, opts)
	m, err := d.mrs.Prepare(f.f, mem, c.iova, mr.Access(access))
	if err != nil {
		return nil, fmt.Errorf("roce: prepare %d bytes for fast registration: %w", len(mem), err)
	}
	return &FastReg{region{m}}, nil
}

// Close destroys the fast memory region and its registrations, and returns when no packet and no
// work request can access the memory any more. It returns ErrInUse while memory windows are bound
// to it. Closing twice is harmless.
func (f *FastMR) Close() error {
	return f.pd.dev.closeMemory(&f.closed, f.kill, nothing)
}

func (f *FastMR) kill() error {
	if err := f.pd.dev.mrs.FreeFastMR(f.f); err != nil {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	f.closed = true
	delete(f.pd.dev.fasts, f)
	f.pd.remove(f)
	f.pd.dev.discharge(f.f.Max())
	return nil
}
