package perf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/roce"
)

// meeting is how the two ends met.
type meeting struct {
	link  *perftest.Link
	local netip.Addr     // this end's
	cm    netip.AddrPort // the peer's, by rdma_cm (-R); not valid: by TCP, and queue pairs are connected by what their keys say
}

func (m *meeting) byCM() bool { return m.cm.IsValid() }

// The shape of a mailbox.
const (
	mailSlots = 16 // receives posted; the exchange has one message under way
	mailBytes = 64 // of a slot, at least perftest.MaxMail
	mailRecv  = uint64(1) << 63
	mailProbe = uint64(1) << 62

	// A peer whose host is gone says nothing any more, and would be waited for without end.
	mailQuiet = 20 * time.Second
)

// mailbox is the connection over which the exchange goes with -R: each message is a SEND on a queue pair of its own. It
// is for one goroutine at a time.
type mailbox struct {
	pd   *roce.PD
	cq   *roce.CQ
	mr   *roce.MR
	qp   *roce.QP
	conn *roce.Conn

	wcs  [mailSlots]roce.WC
	got  [][]byte // received and not taken, at most mailSlots
	sent int      // SENDs that have not completed

	quiet  time.Duration // after which the peer is probed
	probes int           // that have not completed
}

func newMailbox(dev *roce.Device, quiet time.Duration) (m *mailbox, err error) {
	m = &mailbox{quiet: quiet}
	if err = m.build(dev); err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

func (m *mailbox) build(dev *roce.Device) (err error) {
	if m.pd, err = dev.AllocPD(); err != nil {
		return err
	}
	if m.mr, err = m.pd.AllocMR((mailSlots+1)*mailBytes, roce.LocalWrite); err != nil {
		return err
	}
	if m.cq, err = dev.CreateCQ(2 * mailSlots); err != nil {
		return err
	}
	if m.qp, err = dev.CreateQP(m.pd, roce.QPConfig{SendCQ: m.cq, SendDepth: 2, RecvDepth: mailSlots}); err != nil {
		return err
	}
	for i := range mailSlots {
		if err := m.receive(i); err != nil {
			return err
		}
	}
	return nil
}

func (m *mailbox) receive(slot int) error {
	return m.qp.PostRecv(roce.RecvWR{ID: mailRecv | uint64(slot), SGEs: []roce.SGE{m.mr.SGE(slot*mailBytes, mailBytes)}})
}

// Close ends the connection, if there is one, and gives everything back.
func (m *mailbox) Close() error {
	var errs []error
	if m.conn != nil {
		errs = append(errs, m.conn.Close())
	}
	if m.qp != nil {
		errs = append(errs, m.qp.Close())
	}
	if m.cq != nil {
		errs = append(errs, m.cq.Close())
	}
	if m.mr != nil {
		errs = append(errs, m.mr.Close())
	}
	if m.pd != nil {
		errs = append(errs, m.pd.Close())
	}
	m.conn, m.qp, m.cq, m.mr, m.pd = nil, nil, nil, nil, nil
	return errors.Join(errs...)
}

// Send is perftest.Mailbox's. The memory is free again when it returns.
func (m *mailbox) Send(ctx context.Context, b []byte) error {
	off := mailSlots * mailBytes
	copy(m.mr.Bytes()[off:], b)
	m.sent++
	err := m.qp.PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{m.mr.SGE(off, len(b))}})
	if err != nil {
		return m.broken(ctx, err)
	}
	return m.until(ctx, func() bool { return m.sent == 0 })
}

// Receive is perftest.Mailbox's.
func (m *mailbox) Receive(ctx context.Context) ([]byte, error) {
	if err := m.Gone(ctx); err != nil {
		return nil, err
	}
	b := m.got[0]
	m.got = m.got[1:]
	return b, nil
}

// Gone is perftest.Mailbox's: receives that wait are flushed when the connection ends.
func (m *mailbox) Gone(ctx context.Context) error {
	return m.until(ctx, func() bool { return len(m.got) > 0 })
}

// until takes completions until it is so.
func (m *mailbox) until(ctx context.Context, so func() bool) error {
	for !so() {
		n, err := m.wait(ctx)
		if err != nil {
			return m.broken(ctx, err)
		}
		for i := range m.wcs[:n] {
			if err := m.take(&m.wcs[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// wait waits for completions, and probes the peer when there are none for long.
func (m *mailbox) wait(ctx context.Context) (int, error) {
	for {
		some, cancel := context.WithTimeout(ctx, m.quiet)
		n, err := m.cq.Wait(some, m.wcs[:])
		cancel()
		if err == nil || some.Err() == nil || ctx.Err() != nil {
			return n, err
		}
		if m.probes > 0 {
			continue // its retries run
		}
		m.probes++
		// A WRITE of nothing takes no memory, no key and no receive of the peer's, but is acknowledged (IBA, C9-88).
		if err := m.qp.PostSend(roce.SendWR{ID: mailProbe, Op: roce.OpWrite, Flags: roce.Signaled}); err != nil {
			return 0, err
		}
	}
}

func (m *mailbox) take(wc *roce.WC) error {
	switch {
	case wc.Status == roce.WRFlushErr:
		return perftest.ErrGone
	case wc.Status == roce.LocLenErr:
		return fmt.Errorf("%w: it sent more than %d bytes", perftest.ErrGarbage, mailBytes)
	case wc.Status != roce.Success:
		return fmt.Errorf("%w (%v)", perftest.ErrGone, wc.Status)
	case wc.ID&mailProbe != 0:
		m.probes--
		return nil
	case wc.ID&mailRecv == 0:
		m.sent--
		return nil
	case len(m.got) == mailSlots:
		return fmt.Errorf("%w: more than %d messages that nobody asked for", perftest.ErrProtocol, mailSlots)
	}
	slot := int(wc.ID &^ mailRecv)
	m.got = append(m.got, append([]byte(nil), m.mr.Bytes()[slot*mailBytes:][:wc.ByteLen]...))
	return m.receive(slot)
}

// broken says what it means that waiting, or posting, has failed.
func (m *mailbox) broken(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case m.conn != nil && m.conn.Err() != nil:
		return perftest.ErrGone
	}
	return err
}

// localFor is this host's address on the way to a peer, or an unspecified one of the same IP version. Nothing is sent.
func localFor(peer netip.AddrPort) netip.Addr {
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(peer))
	switch {
	case err == nil:
		defer c.Close()
		return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	case peer.Addr().Unmap().Is4():
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
