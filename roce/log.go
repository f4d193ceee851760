package roce

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/limit"
)

// WithLogger makes the Device log rare events to l: devices opened, closed and failed, connections
// established, closed and rejected with the reason, asynchronous events (see Event), and fallbacks
// such as a slower data path than expected. Without it nothing is logged.
//
// Lines are written by a goroutine of their own, so that a slow Handler does not delay the
// protocol; in virtual time they are written at once, with the time of Expert.Clock. The number of
// lines per second is limited, in total and for each peer. A line that follows others which were
// left out has the attribute "suppressed" with their number. Messages and attributes may change
// between versions.
func WithLogger(l *slog.Logger) Option { return func(c *config) { c.logger = l } }

const (
	// maxLogLines is the number of lines that wait for the Handler; further lines are left out.
	maxLogLines = 1024
	// Limits on lines about one peer, and on all lines.
	peerLinesPerSecond, peerLineBurst = 10, 100
	linesPerSecond, lineBurst         = 100, 1000
)

// logger writes the log of a Device. A nil logger writes nothing.
type logger struct {
	log   *slog.Logger
	clock func() int64  // virtual time; nil: real time
	lines chan logLine  // nil in virtual time
	ended chan struct{} // closed when all lines are written

	mu    sync.Mutex  // guards what follows
	rate  *limit.Rate // of lines about peers
	all   *limit.Rate // of other lines
	start time.Time
	lost  int  // lines left out
	over  bool // lines is closed
}

type logLine struct {
	rec  slog.Record
	lost int
}

func newLogger(l *slog.Logger, clock func() int64) *logger {
	if l == nil {
		return nil
	}
	total := limit.Budget{PerSecond: linesPerSecond, Burst: lineBurst}
	g := &logger{
		log: l, clock: clock, start: time.Now(),
		rate: limit.NewRate(limit.RateConfig{Total: total, Seed: rand.Uint64(),
			PerPrefix: limit.Budget{PerSecond: peerLinesPerSecond, Burst: peerLineBurst}}),
		all: limit.NewRate(limit.RateConfig{Total: total}),
	}
	if clock == nil {
		g.lines, g.ended = make(chan logLine, maxLogLines), make(chan struct{})
		go g.run()
	}
	return g
}

// run writes the lines until close is called.
func (g *logger) run() {
	defer close(g.ended)
	for l := range g.lines {
		g.write(l)
	}
}

func (g *logger) write(l logLine) {
	if l.lost > 0 {
		l.rec.AddAttrs(slog.Int("suppressed", l.lost))
	}
	_ = g.log.Handler().Handle(context.Background(), l.rec) // there is nobody to tell
}

// close returns when all lines are written. Later lines are left out.
func (g *logger) close() {
	if g == nil {
		return
	}
	g.mu.Lock()
	again := g.over
	g.over = true
	if g.lines != nil && !again {
		close(g.lines)
	}
	g.mu.Unlock()
	if g.lines != nil {
		<-g.ended
	}
}

// line logs a line about a peer, or about the device if peer is the zero Addr. It does not block.
func (g *logger) line(level slog.Level, peer netip.Addr, text string, attrs ...slog.Attr) {
	if g == nil || !g.log.Enabled(context.Background(), level) {
		return
	}
	now, t := int64(time.Since(g.start)), time.Now()
	if g.clock != nil {
		now = g.clock()
		t = time.Unix(0, now)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	rate := g.all
	if peer.IsValid() {
		rate = g.rate
	}
	if g.over {
		return
	}
	if !rate.Allow(now, peer, 1) {
		g.lost++
		return
	}
	l := logLine{slog.NewRecord(t, level, text, 0), g.lost}
	l.rec.AddAttrs(attrs...)
	if g.lines == nil {
		g.lost = 0
		g.write(l)
		return
	}
	select {
	case g.lines <- l:
		g.lost = 0
	default:
		g.lost++
	}
}

// user logs a line that programs of a user of this host can cause, through a node service. It does
// not block.
func (g *logger) user(level slog.Level, uid uint32, text string, attrs ...slog.Attr) {
	// Rates are by prefix. A user gets a /64 of addresses that no peer can have.
	b := [16]byte{0: 0xff}
	binary.BigEndian.PutUint32(b[4:], uid)
	g.line(level, netip.AddrFrom16(b), text, attrs...)
}

// eventLevels are the levels of asynchronous events; others have slog.LevelDebug.
var eventLevels = map[EventKind]slog.Level{
	EventQPFatal: slog.LevelWarn, EventQPReqErr: slog.LevelWarn, EventQPAccessErr: slog.LevelWarn,
	EventCQErr: slog.LevelError, EventDeviceFatal: slog.LevelError,
	EventPeerNotReady: slog.LevelWarn, EventPortErr: slog.LevelWarn, EventPortNote: slog.LevelWarn,
	EventPortActive: slog.LevelInfo, EventGIDChange: slog.LevelInfo, EventMTUChange: slog.LevelInfo,
}

// event logs an asynchronous event.
func (g *logger) event(e Event) {
	if g == nil {
		return
	}
	level, ok := eventLevels[e.Kind]
	switch {
	case !ok:
		level = slog.LevelDebug
	case e.Kind == EventGIDChange && strings.Contains(e.Detail, removedAddr):
		level = slog.LevelWarn // connections may have used it
	}
	var peer netip.Addr
	attrs := []slog.Attr{slog.String("event", string(e.Kind))}
	if e.QP != nil {
		attrs = append(attrs, slog.Any("qpn", e.QP.QPN()))
	}
	if e.Conn != nil {
		peer = e.Conn.remote.Addr()
		attrs = append(attrs, slog.Any("local", e.Conn.local), slog.Any("remote", e.Conn.remote))
	}
	g.line(level, peer, e.String(), attrs...)
}

// opened logs that the device works.
func (g *logger) opened(d *Device) {
	if g == nil {
		return
	}
	i := d.Info()
	var addrs []string
	for _, e := range d.GIDs() {
		addrs = append(addrs, e.Addr.String())
	}
	g.line(slog.LevelInfo, netip.Addr{}, "device opened", slog.String("device", i.Name),
		slog.String("datapath", i.Datapath), slog.String("mac", i.MAC.String()), slog.Int("mtu", i.MTU),
		slog.Int("path_mtu", int(i.ActiveMTU)), slog.Any("addresses", addrs),
		slog.String("progress", i.Progress.String()))
	if i.Note != "" {
		g.line(slog.LevelWarn, netip.Addr{}, "fallback: "+i.Note, slog.String("device", i.Name))
	}
}

// established logs a new connection. Owner only.
func (g *logger) established(c *Conn) {
	if g == nil {
		return
	}
	a := c.qp.qp.Query()
	g.line(slog.LevelInfo, c.remote.Addr(), "connection established", append(c.attrs(),
		slog.Any("remote_qpn", a.DestQPN), slog.Int("path_mtu", int(a.PathMTU)),
		slog.Bool("selective_repeat", a.Selective))...)
}

// closed logs the end of a connection.
func (g *logger) closed(c *Conn, err error) {
	if g == nil {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrDisconnected) {
		level = slog.LevelInfo
	}
	g.line(level, c.remote.Addr(), "connection ended", append(c.attrs(), slog.Any("reason", err))...)
}

// failed logs a connection that was not established: what is "dial" or "accept".
func (g *logger) failed(what string, local, remote netip.AddrPort, err error) {
	if g == nil || err == nil {
		return
	}
	text := "connection not established"
	if errors.Is(err, ErrRefused) {
		text = "connection rejected by the peer"
	}
	g.line(slog.LevelWarn, remote.Addr(), text, slog.String("by", what), slog.Any("local", local),
		slog.Any("remote", remote), slog.Any("reason", err))
}

// rejected logs a request that this side has refused.
func (g *logger) rejected(r *Request, reason RejectReason) {
	if g == nil {
		return
	}
	g.line(slog.LevelInfo, r.RemoteAddr().Addr(), "request rejected", slog.Any("local", r.LocalAddr()),
		slog.Any("remote", r.RemoteAddr()), slog.String("reason", reason.String()))
}

func (c *Conn) attrs() []slog.Attr {
	return []slog.Attr{slog.Any("local", c.local), slog.Any("remote", c.remote),
		slog.Any("qpn", c.qp.QPN())}
}
