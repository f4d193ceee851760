package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

const (
	granted  = 8 << 10 // bytes that a hostile peer may access
	border   = 4 << 10 // bytes before and after them
	guard    = 0x5a
	firstPSN = 0xfffff0
	// volley is how many frames the attacker sends at once.
	volley = 32
	// pauseHostile is the longest pause between two hostile steps.
	pauseHostile = 20 * time.Millisecond
)

// victim is a queue pair of the device under test that is connected to the attacker.
type victim struct {
	e       *endpoint.Endpoint
	secret  *roce.MR // without remote rights
	grant   *guarded
	pending map[uint64]bool // work requests without completion
	gen     *packets.Generator
	from    frame.Address
	asked   bth.PSN // the first PSN that the victim sends
}

// newVictim creates a victim. memory is the endpoint whose memory it grants.
func (w *world) newVictim(
	r *rand.Rand, e *endpoint.Endpoint, q *roce.QP, grant *guarded, secret *roce.MR,
) (*victim, error) {
	v := &victim{e: e, secret: secret, grant: grant, pending: map[uint64]bool{}}
	v.from = w.attack.address(r, 0)
	local := q.Local()
	v.from.Dst = local.GID
	for _, a := range w.attack.port.Addrs() {
		if g := bth.GIDFromAddr(a.Addr()); g.IsIPv4() == local.GID.IsIPv4() &&
			a.Addr().IsLinkLocalUnicast() == local.GID.Addr().IsLinkLocalUnicast() {
			v.from.Src = g
		}
	}
	psn := bth.PSN(firstPSN + r.IntN(32)&0xffffff)
	if q.Type() == roce.UD {
		if err := q.Activate(qkey); err != nil {
			return nil, err
		}
	} else {
		ctx, cancel := w.wait()
		defer cancel()
		o := roce.ConnectOptions{MTU: 1024, Timeout: 8, Retries: 2, RNRRetries: 2}
		err := q.Connect(ctx, roce.Endpoint{QPN: bth.QPN(0x1000 + r.IntN(1<<20)), PSN: psn & 0xffffff,
			GID: v.from.Src, MTU: 4096, PKey: bth.DefaultPKey}, o)
		if err != nil {
			return nil, err
		}
	}
	v.asked = local.PSN
	v.gen = packets.New(r.Uint64(), packets.Target{
		Address: v.from, Transport: transports[q.Type()], QPN: q.QPN(), PSN: psn & 0xffffff,
		QKey: qkey, SrcQPN: 9, MTU: 1024, Addr: grant.Addr(), RKey: grant.RKey(),
		Len: granted, Responses: r.IntN(2) == 0, Sound: r.Float64(),
		Others: []packets.Region{
			{Addr: secret.Addr(), RKey: bth.RKey(secret.LKey()), Len: granted},
			{Addr: secret.Addr(), RKey: grant.RKey(), Len: granted},
			{Addr: grant.Addr() - border, RKey: grant.RKey(), Len: granted},
			{Addr: grant.Addr() + border, RKey: grant.RKey(), Len: granted},
			{Addr: grant.Addr(), RKey: bth.RKey(grant.LKey()), Len: granted},
		},
	})
	w.n[qps].Add(1)
	return v, nil
}

var transports = map[roce.QPType]bth.Transport{roce.RC: bth.RC, roce.UC: bth.UC, roce.UD: bth.UD}

// fire sends a volley to the victim, and follows the PSNs in its answers.
func (w *world) fire(r *rand.Rand, v *victim) error {
	request := v.gen.Target().PSN
	answering := v.gen.Target().Responses && r.IntN(2) == 0
	if answering {
		request = v.gen.Target().PSN
		v.gen.SetPSN(v.asked.Add(uint32(r.IntN(4))))
	}
	n, err := w.attack.send(volley, v.gen.Frame, func(p *bth.Packet) {
		w.n[hostileAnswers].Add(1)
		if p.Info.AETH != 0 && p.BTH.Opcode() == bth.RCAck && r.IntN(2) == 0 {
			request = p.BTH.PSN()
		}
	})
	if answering {
		v.gen.SetPSN(request)
	}
	w.n[hostilePackets].Add(uint64(n))
	return err
}

// guarded is memory whose middle a hostile peer may access.
type guarded struct {
	*roce.MR
	mem []byte
}

// newGuarded allocates memory. The region is its middle.
func newGuarded(pd *roce.PD, access roce.Access) (*guarded, error) {
	g := &guarded{mem: make([]byte, border+granted+border)}
	for i := range g.mem {
		g.mem[i] = guard
	}
	var err error
	g.MR, err = pd.RegisterMR(g.mem[border:border+granted], access)
	return g, err
}

// check checks that nobody changed the borders of the memory.
func (g *guarded) check() error {
	return errors.Join(untouched(g.mem[:border]), untouched(g.mem[border+granted:]))
}

func untouched(b []byte) error { return all(b, guard) }
func empty(b []byte) error     { return all(b, 0) }

func all(b []byte, want byte) error {
	for i, v := range b {
		if v != want {
			return fmt.Errorf("a hostile peer changed byte %d of memory that it must not access", i)
		}
	}
	return nil
}

// hostilePeer creates a queue pair for the attacker, which attacks it while it has work of its own.
func (w *world) hostilePeer(r *rand.Rand) (err error) {
	if !w.pause(r, pauseHostile) {
		return nil
	}
	gid := r.IntN(len(w.tb.Dev[0].GIDs()))
	e, err := endpoint.New(w.tb.Dev[0], endpoint.Config{
		QP: roce.QPConfig{Type: []roce.QPType{roce.RC, roce.RC, roce.UC, roce.UD}[r.IntN(4)],
			SendDepth: slots, RecvDepth: slots, GIDIndex: &gid},
		Memory: slots * slotLen, Access: roce.LocalWrite,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	secret, err := e.AddMR(granted, roce.LocalWrite)
	if err != nil {
		return err
	}
	grant, err := newGuarded(e.PD, endpoint.AllRemote)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(grant.Close(), err) }()
	w.n[regions].Add(3)
	v, err := w.newVictim(r, e, e.QP, grant, secret)
	if err != nil {
		return err
	}
	for i := range uint64(slots) {
		v.pending[i] = true
		if err := post(e, int(i)); err != nil {
			return err
		}
	}
	if e.QP.Type() == roce.RC {
		if err := v.ask(r); err != nil {
			return err
		}
	}
	for range 1 + r.IntN(8) {
		if err := w.fire(r, v); err != nil {
			return err
		}
		if err := v.poll(); err != nil {
			return err
		}
		w.pace.wait()
	}
	if e.QP.State() == roce.StateErr {
		w.n[victimsKilled].Add(1)
	}
	return v.over()
}

// ask posts work whose answers the attacker forges.
func (v *victim) ask(r *rand.Rand) error {
	for i := range uint64(r.IntN(slots)) {
		wr := roce.SendWR{ID: 1000 + i, Flags: roce.Signaled, RemoteAddr: 0x10000, RKey: 1,
			SGEs: []roce.SGE{v.e.MR.SGE(r.IntN(slotLen), r.IntN(slotLen))}}
		switch wr.Op = []roce.Op{roce.OpWrite, roce.OpRead, roce.OpSend,
			roce.OpFetchAdd}[r.IntN(4)]; wr.Op {
		case roce.OpFetchAdd:
			wr.SGEs = []roce.SGE{v.e.MR.SGE(0, 8)}
		}
		if err := v.e.QP.PostSend(wr); err != nil {
			return err
		}
		v.pending[wr.ID] = true
	}
	return nil
}

// poll checks that every work request completes at most once.
func (v *victim) poll() error {
	var wcs [slots]roce.WC
	for {
		n := v.e.CQ.Poll(wcs[:])
		if n == 0 {
			return nil
		}
		for _, wc := range wcs[:n] {
			if !v.pending[wc.ID] {
				return fmt.Errorf("work request %d of a victim completed twice, or was never posted",
					wc.ID)
			}
			delete(v.pending, wc.ID)
		}
	}
}

// over closes the queue pair and checks that all its work completed and no other memory changed.
func (v *victim) over() error {
	if err := v.e.QP.Close(); err != nil {
		return err
	}
	if err := v.poll(); err != nil {
		return err
	}
	if len(v.pending) > 0 {
		return fmt.Errorf("%d work requests of a victim never completed", len(v.pending))
	}
	return errors.Join(empty(v.secret.Bytes()), v.grant.check())
}

// outsider sends packets from its own address to the queue pairs of others, and replays packets of
// honest peers.
func (w *world) outsider(r *rand.Rand) error {
	if !w.pause(r, pauseHostile) {
		return nil
	}
	q := w.targets.get()
	if q == nil {
		return nil
	}
	if r.IntN(2) == 0 {
		var b []byte
		n, err := w.attack.send(volley/4, func() []byte {
			b = w.replays.get(r, false, b)
			return b
		}, nil)
		w.n[hostileReplays].Add(uint64(n))
		return err
	}
	a, err := q.Query()
	if err != nil {
		return nil // closed meanwhile
	}
	g := packets.New(r.Uint64(), packets.Target{Address: w.attack.address(r, 0), QPN: q.QPN(),
		PSN: a.RQPSN, MTU: a.PathMTU, Responses: true, Sound: r.Float64()})
	if r.IntN(2) == 0 {
		g.SetPSN(a.SQPSN)
	}
	n, err := w.attack.send(volley, g.Frame, func(*bth.Packet) { w.n[hostileAnswers].Add(1) })
	w.n[hostileOther].Add(uint64(n))
	return err
}

// mads sends MADs of honest peers from the attacker's address, most of them changed.
func (w *world) mads(r *rand.Rand) error {
	if !w.pause(r, 10*pauseHostile) {
		return nil
	}
	var b []byte
	n, err := w.attack.send(1+r.IntN(4), func() []byte {
		b = w.replays.get(r, true, b)
		return w.attack.readdress(r, b)
	}, func(*bth.Packet) { w.n[hostileAnswers].Add(1) })
	w.n[hostileMADs].Add(uint64(n))
	return err
}

// readdress puts the attacker's headers around the payload of a frame and changes some of its
// bytes. It returns nil if f is no frame.
func (a *attacker) readdress(r *rand.Rand, f []byte) []byte {
	if a.dec.Decode(f, &a.pkt) != frame.ReasonOK {
		return nil
	}
	p := append([]byte(nil), a.pkt.BTH...)
	const headers = 20 // BTH and DETH
	for range r.IntN(4) {
		p[headers+r.IntN(len(p)-headers)] = byte(r.Uint32())
	}
	addr := a.address(r, r.IntN(2))
	out := make([]byte, bth.MaxNetHeader+len(p)+bth.ICRCLen)
	n := frame.PutHeaders(out, &addr)
	copy(out[n:], p)
	out = out[:n+len(p)+bth.ICRCLen]
	a.enc.Finish(out, n)
	return out
}
