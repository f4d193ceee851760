//go:build interop

package interop_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// Parameters of the status byte's scenarios. Blocks are larger than any path MTU.
const (
	statusPort    = 7480
	statusBlocks  = 4
	statusSize    = 10000
	statusDevices = 5
	statusPackets = 60
	statusTime    = time.Minute
)

// TestStatusByte tests transport/statusbyte against a program with only libibverbs and librdmacm on
// the kernel's rxe as sender and receiver: every byte is compared, blocks are retained, packets are
// lost.
func TestStatusByte(t *testing.T) {
	playStreams(t, "status byte", peer.StatusByte,
		[]streams{{name: "clean"}, {name: "blocks retained", n: 7}, {name: "lossy", loss: "2%"}},
		[2]func(*testing.T, *rig, variant, *peer.Peer, int){gorxeSends, gorxeTakes},
		[2]func(*testing.T, *rig, variant, *peer.Peer){gorxeIsRefused, gorxeRefuses})
}

// streams is one scenario of a stream transport.
type streams struct {
	name string
	loss string // both directions
	n    int    // the scenario's parameter
}

// playStreams runs scenarios of a stream transport against its peer in the guest, and a mismatch of
// block sizes. With the first function gorxe is the sender and the active side, with the second the
// receiver.
func playStreams(t *testing.T, title, program string, list []streams,
	talk [2]func(*testing.T, *rig, variant, *peer.Peer, int),
	mismatch [2]func(*testing.T, *rig, variant, *peer.Peer)) {
	role := func(v variant) int {
		if v.gorxePassive {
			return 1
		}
		return 0
	}
	for _, s := range list {
		play(t, title+", "+s.name, few(), func(t *testing.T, r *rig, v variant) {
			p := startPeer(t, r, program)
			if s.loss != "" {
				r.fault(t, true, "loss "+s.loss)
				r.fault(t, false, "loss "+s.loss)
			}
			talk[role(v)](t, r, v, p, s.n)
		})
	}
	play(t, title+", sizes differ", few()[:2], func(t *testing.T, r *rig, v variant) {
		mismatch[role(v)](t, r, v, startPeer(t, r, program))
	})
}

// startPeer starts a transport's peer in the guest.
func startPeer(t *testing.T, r *rig, name string) *peer.Peer {
	t.Helper()
	p, err := peer.StartTransport(r.Guests[0].VM, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Kill() })
	return p
}

// statusContent is the content of packet n of device d on both sides.
func statusContent(d, n int) []byte {
	b := make([]byte, (7919*d+977*n)%(statusSize+1))
	for i := range b {
		b[i] = byte(31*d + 17*n + i)
	}
	return b
}

func (r *rig) statusAddr(v variant) netip.AddrPort {
	return netip.AddrPortFrom(r.Guests[0].Addr(v.v6), statusPort)
}

// command runs a peer's command concurrently.
func command(p *peer.Peer, format string, args ...any) <-chan reply {
	done := make(chan reply, 1)
	go func() {
		r, err := p.Do(statusTime, format, args...)
		done <- reply{r.Fields, err}
	}()
	return done
}

func gorxeSends(t *testing.T, r *rig, v variant, p *peer.Peer, retain int) {
	if _, err := p.Do(0, "listen port=%d blocks=%d size=%d", statusPort, statusBlocks,
		statusSize); err != nil {
		t.Fatal(err)
	}
	served := command(p, "serve ms=%d retain=%d", statusTime.Milliseconds(), retain)
	ctx, cancel := context.WithTimeout(t.Context(), statusTime)
	defer cancel()
	s, err := statusbyte.Init(ctx, r.dev, r.statusAddr(v), statusbyte.Config{Blocks: statusBlocks})
	if err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, statusDevices)
	for d := range statusDevices {
		go func() {
			errs <- func() error {
				for n := range statusPackets {
					if err := s.Write(ctx, uint8(d), statusContent(d, n)); err != nil {
						return fmt.Errorf("device %d, packet %d: %w", d, n, err)
					}
				}
				return s.End(ctx, uint8(d))
			}()
		}()
	}
	for range statusDevices {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	f := <-served
	if f.err != nil {
		t.Fatal(f.err)
	}
	t.Logf("guest: %v; gorxe: %+v", f.Fields, s.Stats())
	if f.Num("packets") != statusDevices*statusPackets ||
		f.Num("wrong")+f.Num("gaps")+f.Num("dups")+f.Num("bad") != 0 {
		t.Errorf("the guest has %v", f.Fields)
	}
	if retain > 0 && f.Num("retained") == 0 {
		t.Error("nothing was retained")
	}
	if st := s.Stats(); st.Syncs == 0 || st.BadStatus != 0 {
		t.Errorf("%+v", st)
	}
}

func gorxeTakes(t *testing.T, r *rig, v variant, p *peer.Peer, retain int) {
	l, err := statusbyte.Listen(r.dev, netip.AddrPortFrom(r.HostAddr(v.v6), statusPort),
		statusbyte.Config{Blocks: statusBlocks, BlockSize: statusSize})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), statusTime)
	defer cancel()
	sent := command(p, "send addr=%v port=%d devices=%d packets=%d ms=%d", r.HostAddr(v.v6),
		statusPort, statusDevices, statusPackets, statusTime.Milliseconds())
	rx, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rx.Close() }()
	var next [statusDevices]int
	var kept []statusbyte.Block
	for all := 0; ; all++ {
		b, err := rx.Receive(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n := next[b.Device]
		switch {
		case b.Last && n == statusPackets && len(b.Data) == 0:
		case int(b.Packet) != n || string(b.Data) != string(statusContent(int(b.Device), n)):
			t.Fatalf("device %d, packet %d with %d bytes, where %d was to come", b.Device, b.Packet,
				len(b.Data), n)
		default:
			next[b.Device]++
		}
		if len(kept) > 0 && all%3 == 0 {
			kept[0].Release()
			kept = kept[1:]
		}
		if retain > 0 && all%retain == 0 {
			b.Retain()
			kept = append(kept, b)
			continue
		}
		b.Release()
	}
	f := <-sent
	if f.err != nil {
		t.Fatal(f.err)
	}
	t.Logf("guest: %v; gorxe: %+v", f.Fields, rx.Stats())
	for d, n := range next {
		if st := rx.Device(uint8(d)); n != statusPackets || st.Gaps+st.Duplicates != 0 {
			t.Errorf("device %d: %d packets, %+v", d, n, st)
		}
	}
	if st := rx.Stats(); st != (statusbyte.ReceiverStats{}) {
		t.Errorf("%+v", st)
	}
}

func gorxeIsRefused(t *testing.T, r *rig, v variant, p *peer.Peer) {
	if _, err := p.Do(0, "listen port=%d blocks=%d size=%d", statusPort, statusBlocks,
		statusSize); err != nil {
		t.Fatal(err)
	}
	served := command(p, "serve ms=10000")
	_, err := statusbyte.Init(t.Context(), r.dev, r.statusAddr(v),
		statusbyte.Config{Blocks: statusBlocks + 1})
	if !errors.Is(err, statusbyte.ErrMismatch) {
		t.Errorf("%v", err)
	}
	if f := <-served; !errors.Is(f.err, peer.ErrRefused) {
		t.Errorf("the guest: %v", f.err)
	}
}

func gorxeRefuses(t *testing.T, r *rig, v variant, p *peer.Peer) {
	refused := make(chan error, 1)
	l, err := statusbyte.Listen(r.dev, netip.AddrPortFrom(r.HostAddr(v.v6), statusPort),
		statusbyte.Config{Blocks: statusBlocks, BlockSize: statusSize,
			Refused: func(_ netip.AddrPort, err error) { refused <- err }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() { _, _ = l.Accept(t.Context()) }() // until Close
	sent := command(p, "send addr=%v port=%d blocks=%d size=%d ms=10000", r.HostAddr(v.v6),
		statusPort, statusBlocks, statusSize-1)
	if err := <-refused; !errors.Is(err, statusbyte.ErrMismatch) {
		t.Errorf("%v", err)
	}
	if f := <-sent; !errors.Is(f.err, peer.ErrRefused) ||
		!strings.Contains(f.err.Error(), fmt.Sprintf("size=%d", statusSize)) {
		t.Errorf("the guest: %v", f.err)
	}
}
