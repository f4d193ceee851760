package roce

import (
	"fmt"

	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// MWType says who may bind a memory window, and who may use it (ibv_mw_type).
type MWType = mr.WindowType

// The types of memory windows.
const (
	// MWType1 is bound through any QP of its PD and serves every QP of that PD. Binding it again replaces what it was bound
	// to; binding it to no bytes ends that.
	MWType1 = mr.Type1
	// MWType2 is bound through one QP and serves that QP alone (type 2B). It has to be invalidated before it is bound
	// again: by OpLocalInv on that QP, or by the peer's OpSendInv.
	MWType2 = mr.Type2
)

// MW is a memory window: it gives peers a part of a memory region, with rights of its own, for as long as it is bound.
// Binding and ending it are work requests, and much cheaper than registering memory. The region needs MWBind; it may
// itself be closed to peers.
type MW struct {
	pd     *PD
	w      *mr.Window
	closed bool // under Device.ctl
}

// AllocMW makes a memory window that is not bound to anything.
func (p *PD) AllocMW(t MWType) (*MW, error) {
	d := p.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	w, err := d.mrs.AllocWindow(p.pd, t)
	if err != nil {
		return nil, fmt.Errorf("roce: allocate a memory window: %w", err)
	}
	m := &MW{pd: p, w: w}
	d.mws[m] = struct{}{}
	return m, nil
}

// Type is the window's type.
func (w *MW) Type() MWType { return w.w.Type() }

// PD is the window's protection domain.
func (w *MW) PD() *PD { return w.pd }

// RKey is the key by which peers use the window now; 0 while it is not bound.
func (w *MW) RKey() RKey { return RKey(w.w.RKey()) }

// NextRKey draws the key that the window shall have after its next bind, for the RKey of an OpBindMW work request. Where
// verbs leave the low byte of the next key to the program (ibv_inc_rkey), here the device chooses the whole key; no key
// ever comes twice. It opens nothing before the bind has run, and serves one bind.
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

// Close ends the window, bound or not, and returns when no packet can come through it any more. Closing twice is
// harmless.
func (w *MW) Close() error {
	d := w.pd.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if w.closed {
		return nil
	}
	w.kill()
	d.grace()
	return nil
}

// kill ends the window; the caller holds ctl.
func (w *MW) kill() {
	w.closed = true
	delete(w.pd.dev.mws, w)
	// The only error is that it was freed before.
	_ = w.pd.dev.mrs.FreeWindow(w.w)
}

// MWBindAttr says what BindMW binds a window to (ibv_mw_bind).
type MWBindAttr struct {
	ID     uint64 // of the completion
	Flags  SendFlags
	SGE    SGE    // part of a memory region with MWBind: MR.SGE makes one. No bytes: end the binding of a type 1 window
	Access Access // RemoteWrite, RemoteRead, RemoteAtomic, FlushGlobal, FlushPersistent; ZeroBased with type 2
}

// BindMW posts an OpBindMW work request and returns the window's new key, which a work request posted after it may
// already tell the peer. Errors of the bind itself (bounds, rights) come as the status MWBindErr of its completion, and take
// the QP to ERR. It may wait for other goroutines that create or close objects; on the data path, draw keys ahead
// by NextRKey and post OpBindMW.
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
	wr := SendWR{ID: a.ID, Op: qp.OpBindMW, Flags: a.Flags, RKey: key, Access: a.Access}
	if a.SGE.Length > 0 {
		wr.SGEs = []SGE{a.SGE}
	}
	if err := q.PostSend(wr); err != nil {
		d.mrs.DropRKey(w.w, mr.Key(key))
		return 0, err
	}
	return key, nil
}

// FastMR is a memory region whose memory comes by work request (fast register): Prepare names memory and settles the keys,
// OpRegMR makes them live in the order of its send queue, OpLocalInv or the peer's OpSendInv ends them, and the next
// Prepare begins anew.
type FastMR struct {
	pd     *PD
	f      *mr.FastMR
	closed bool // under Device.ctl
}

// AllocFastMR makes a fast MR that takes up to max bytes.
func (p *PD) AllocFastMR(max int) (*FastMR, error) {
	d := p.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	f, err := d.mrs.AllocFastMR(p.pd, max)
	if err != nil {
		return nil, fmt.Errorf("roce: allocate a fast memory region: %w", err)
	}
	m := &FastMR{pd: p, f: f}
	d.fasts[m] = struct{}{}
	return m, nil
}

// PD is the fast MR's protection domain.
func (f *FastMR) PD() *PD { return f.pd }

// FastReg is one registration of a FastMR. Its keys can be used in work requests behind the OpRegMR that makes it
// live:
//
//	qp.PostSend(
//		roce.SendWR{Op: roce.OpRegMR, RKey: reg.RKey()},
//		roce.SendWR{Op: roce.OpSend, ...}, // tells the peer reg.Remote()
//	)
type FastReg struct {
	*mr.MR // Addr, Len, Bytes, Access, Registered, Load8, Store8, Load64, Store64, Add64, CompareAndSwap64
}

// Prepare names the memory and the rights of the next registration. mem stays the caller's, and must not be freed or
// reused before the registration has ended (the completion of OpLocalInv, or a receive with WCWithInv) or Close has
// returned. The options are RegisterMR's.
func (f *FastMR) Prepare(mem []byte, access Access, opts ...MROption) (*FastReg, error) {
	c := mrOptions(mem, opts)
	d := f.pd.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if f.closed {
		return nil, fmt.Errorf("%w: the fast memory region", ErrClosed)
	}
	m, err := d.mrs.Prepare(f.f, mem, c.iova, access)
	if err != nil {
		return nil, fmt.Errorf("roce: prepare %d bytes for fast registration: %w", len(mem), err)
	}
	return &FastReg{m}, nil
}

// Close ends the fast MR and what is registered, and returns when no packet and no work request can touch the memory any
// more. ErrInUse while memory windows are bound to it. Closing twice is harmless.
func (f *FastMR) Close() error {
	d := f.pd.dev
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if f.closed {
		return nil
	}
	if err := f.kill(); err != nil {
		return err
	}
	d.grace()
	return nil
}

func (f *FastMR) kill() error {
	if err := f.pd.dev.mrs.FreeFastMR(f.f); err != nil {
		return fmt.Errorf("%w: %w", ErrInUse, err)
	}
	f.closed = true
	delete(f.pd.dev.fasts, f)
	return nil
}

// LKey is the key by which the owner's work requests name the registration.
func (r *FastReg) LKey() LKey { return LKey(r.MR.LKey()) }

// RKey is the key by which peers, OpRegMR and OpLocalInv name the registration.
func (r *FastReg) RKey() RKey { return RKey(r.MR.RKey()) }

// SGE names n bytes from offset off of the registration.
func (r *FastReg) SGE(off, n int) SGE {
	return SGE{Addr: r.Addr() + uint64(off), Length: uint32(n), LKey: r.LKey()}
}

// Remote is what a peer has to know to use the registration.
func (r *FastReg) Remote() RemoteBuffer {
	return RemoteBuffer{Addr: r.Addr(), RKey: r.RKey(), Len: uint64(r.Len())}
}
