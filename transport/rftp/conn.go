package rftp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp/core"
)

// Conn is a connection to a peer: one control QP and one or more data QPs. Both sides may send and
// receive blocks and messages. Its methods are safe for concurrent use.
//
// On a device with Auto progress, a goroutine of the Conn handles completions. With Manual
// progress, the methods that block do so, and Progress; with Config.Drive, the methods that block.
type Conn struct {
	cfg    Config
	dev    *roce.Device
	manual bool // a caller drives the Conn
	drive  bool // callers drive the Conn and the device; see lead.go
	now    func() int64

	own     Limits
	agreed  agreement
	class   int      // traffic class of the data QPs
	mtu     roce.MTU // path MTU of the control QP, for the data QPs; 0: the largest
	gid     *int     // index of the local GID; nil: the device chooses
	pd      *roce.PD
	cq      *roce.CQ
	srq     *roce.SRQ       // receives of all data QPs
	ctl     *roce.QP        // control QP
	data    []*roce.QP      // data QPs
	memory  *roce.MR        // control messages: ControlDepth to send, then as many to receive
	blocks  int             // of the sink's pool
	sources int             // of the source's pool
	cleanup func()          // of the listener
	timer   *time.Timer     // Auto progress
	life    context.Context // until destroy; with Auto progress
	cancel  context.CancelFunc
	poller  sync.WaitGroup
	turn    sync.Mutex // held while completions are handled
	wcs     [pollBatch]roce.WC
	down    chan struct{} // closed when the connection has ended

	// With Config.Drive.
	guard     *time.Timer // runs while callers lead
	release   func()      // of Device.Drive; nil: the device's goroutine runs it. turn guards it
	led, seen int         // calls that led, and of these, those that guard has seen
	shift     atomic.Pointer[shift]

	// mu guards the fields below.
	mu      sync.Mutex
	m       *core.Machine // nil until the connection exists
	rcs     []*roce.Conn  // control QP first; nil without the connection manager
	in      pool          // blocks from the peer
	out     pool          // blocks to the peer
	headers []core.Header // of blocks from the peer
	sent    int           // control messages
	// nextMeasure is the number of sent bytes at which the backlog is measured again.
	nextMeasure uint64
	act         core.Action
	closing     []int // data QPs to close
	wakes       [numEvents]wake
	armed       core.Time
	closed      bool
	said        bool // Abort has told the peer why
	ended       bool // down is closed

	// Scratch for posting, kept here so that nothing is allocated.
	wr   [1]roce.SendWR
	recv [1]roce.RecvWR
	sge  [1]roce.SGE
}

const pollBatch = 64

// wake is something that goroutines wait for.
type wake struct {
	c   chan struct{}
	gen int // how often it happened
}

// event is an index of Conn.wakes.
type event int

const (
	onFree event = iota
	onReady
	onMessage
	onSpace
	onSessions
	onEnd
	numEvents
)

// systemStart is the origin of the system's clock.
var systemStart = time.Now()

func systemClock() int64 { return 1 + int64(time.Since(systemStart)) }

// newConn creates one side of a connection up to its control QP.
func newConn(dev *roce.Device, cfg Config, size int, gid *int) (*Conn, error) {
	c := &Conn{cfg: cfg, dev: dev, own: cfg.limits(), class: cfg.Class, gid: gid, now: cfg.Clock,
		manual: dev.Info().Progress == roce.Manual || cfg.Wait != nil || cfg.Clock != nil,
		down:   make(chan struct{}), armed: core.Never}
	if c.now == nil {
		c.now = systemClock
	}
	c.drive = cfg.Drive && !c.manual
	for i := range c.wakes {
		c.wakes[i].c = make(chan struct{}, 1)
	}
	if err := c.create(size); err != nil {
		return nil, errors.Join(err, c.destroy())
	}
	return c, nil
}

// create creates the control QP and what it needs. size is the smallest possible block size.
func (c *Conn) create(size int) (err error) {
	if c.pd, err = c.dev.AllocPD(); err != nil {
		return err
	}
	// WRITEs of a failed QP may complete after their blocks were sent again.
	depth := 4*core.ControlDepth + blocksOf(c.cfg.Pool, size) + 2*blocksOf(c.cfg.SourcePool, size)
	if c.cq, err = c.dev.CreateCQ(depth); err != nil {
		return err
	}
	c.memory, err = c.pd.AllocMR(2*core.ControlDepth*core.MaxControl, roce.LocalWrite)
	if err != nil {
		return err
	}
	c.ctl, err = c.dev.CreateQP(c.pd, roce.QPConfig{SendCQ: c.cq, SendDepth: core.ControlDepth,
		RecvDepth: core.ControlDepth, MaxSendSGE: 1, MaxRecvSGE: 1, GIDIndex: c.gid})
	if err != nil {
		return err
	}
	for i := range core.ControlDepth {
		if err := c.postControlRecv(i); err != nil {
			return err
		}
	}
	return nil
}

// agree sets what both sides use and creates what depends on it.
func (c *Conn) agree(a agreement) (err error) {
	c.agreed = a
	c.blocks, c.sources = blocksOf(c.cfg.Pool, a.size), blocksOf(c.cfg.SourcePool, a.size)
	c.data = make([]*roce.QP, a.qps)
	c.srq, err = c.dev.CreateSRQ(c.pd, roce.SRQConfig{Depth: c.blocks, MaxSGE: 1})
	return err
}

// maxQPDepth bounds the WRITEs that a data QP holds.
const maxQPDepth = 4096

// createData creates data QP i.
func (c *Conn) createData(i int) (q *roce.QP, err error) {
	c.data[i], err = c.dev.CreateQP(c.pd, roce.QPConfig{SendCQ: c.cq, SRQ: c.srq,
		SendDepth: min(c.sources, maxQPDepth), MaxSendSGE: 1, GIDIndex: c.gid})
	return c.data[i], err
}

// start begins the protocol.
func (c *Conn) start() error {
	m, err := core.New(core.Time(c.now()), core.Config{
		Mode: c.agreed.mode, BlockSize: uint32(c.agreed.size), QPs: c.agreed.qps,
		QPDepth: min(c.sources, maxQPDepth), SourceBlocks: c.sources, Sessions: c.cfg.Sessions,
		Rate: c.cfg.Rate, Silence: core.Time(c.cfg.Silence),
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.m = m
	if c.cfg.Clock == nil && c.cfg.Wait == nil {
		c.setBacklog(firstBacklog)
	}
	c.mu.Unlock()
	if !c.cfg.Hold {
		if err := c.Grant(); err != nil {
			return err
		}
	}
	if c.manual {
		return nil
	}
	c.life, c.cancel = context.WithCancel(context.Background())
	c.mu.Lock()
	c.timer = time.AfterFunc(time.Hour, c.expire)
	c.pump()
	c.mu.Unlock()
	if c.drive {
		c.guard = time.AfterFunc(time.Hour, c.watch)
		c.turn.Lock()
		c.relieve()
		return nil
	}
	c.poller.Go(func() { c.pollAlways(c.life) })
	return nil
}

// Grant gives the peer memory for blocks. Without Config.Hold it is done when the connection is
// set up. A second call has no effect.
func (c *Conn) Grant() error {
	c.mu.Lock()
	have := c.in.mr != nil
	c.mu.Unlock()
	if have {
		return nil
	}
	access := roce.LocalWrite | roce.RemoteWrite
	mr, err := c.pd.AllocMR(c.blocks*stride(c.agreed.size), access, roce.WithIOVA(poolAddr))
	if err != nil {
		return fmt.Errorf("rftp: allocate a pool of %d blocks of %d bytes: %w", c.blocks,
			c.agreed.size, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in.mr != nil || c.closed {
		return mr.Close()
	}
	c.in.init(c, mr, c.blocks, c.agreed.size, false)
	c.headers = make([]core.Header, c.blocks)
	for range c.blocks {
		if err := c.postFinRecv(); err != nil {
			return err
		}
	}
	err = c.m.Accept(core.Pool{Addr: mr.Addr() + headerAt, Stride: uint64(stride(c.agreed.size)),
		Key: uint32(mr.RKey()), Blocks: c.blocks})
	c.pump()
	return err
}

// BlockSize returns the agreed size of blocks in bytes.
func (c *Conn) BlockSize() int { return c.agreed.size }

// DataQPs returns the agreed number of data QPs.
func (c *Conn) DataQPs() int { return c.agreed.qps }

// RemoteAddr returns the peer's address and port. It is the zero AddrPort without the connection
// manager.
func (c *Conn) RemoteAddr() netip.AddrPort {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.rcs) == 0 || c.rcs[0] == nil {
		return netip.AddrPort{}
	}
	return c.rcs[0].RemoteAddr()
}

// Counters returns the counters of the connection.
func (c *Conn) Counters() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		return Counters{}
	}
	return c.m.Counters
}

// Err returns why the connection has ended, or nil.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err()
}

// err is Err for a caller that holds mu.
func (c *Conn) err() error {
	switch {
	case c.m != nil && c.m.Err() != nil:
		return c.m.Err()
	case c.closed:
		return ErrClosed
	case c.m == nil:
		return fmt.Errorf("%w: the connection is not established: call Join", ErrConfig)
	}
	return nil
}

// Done returns a channel that is closed when the connection has ended. With Manual progress, this
// needs calls that drive the Conn.
func (c *Conn) Done() <-chan struct{} { return c.down }

// Finish says that this side opens no more sessions, waits until the peer has consumed all of them,
// and tells the peer, whose GetReady then returns io.EOF.
func (c *Conn) Finish(ctx context.Context) error {
	for {
		c.mu.Lock()
		err := c.err()
		if err == nil {
			c.m.Finish()
			c.pump()
		}
		// A peer that has finished, too, may close the connection at once.
		done := c.m != nil && c.m.Finished()
		c.mu.Unlock()
		if done {
			return nil
		}
		if err != nil {
			return err
		}
		if err := c.sleep(ctx, onSessions); err != nil {
			return err
		}
	}
}

// Abort ends the connection and tells the peer why. Unlike Close, it frees nothing.
func (c *Conn) Abort(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m != nil {
		c.said = c.said || c.m.Err() == nil
		c.m.Abort(fmt.Errorf("%w: aborted: %s", ErrClosed, text), text)
		c.pump()
	}
}

// byeTime is how long Close waits for the peer's NIC to take the last message.
const byeTime = time.Second

// Close ends the connection, tells the peer, and frees everything. It does not wait for sessions:
// call Finish before. Blocks must not be used afterwards. Closing twice is harmless.
func (c *Conn) Close() error {
	c.mu.Lock()
	was := c.closed
	c.closed = true
	said := c.said // the reason of Abort must arrive before the end of the connection
	if c.m != nil && !was {
		said = said || c.m.Err() == nil
		c.m.Abort(ErrClosed, "")
		c.pump()
	}
	c.mu.Unlock()
	if was {
		return nil
	}
	if c.guard != nil {
		c.retire()
	}
	if said {
		ctx, cancel := context.WithTimeout(context.Background(), byeTime)
		_ = c.ctl.Drain(ctx) // the peer may be gone
		cancel()
	}
	return c.destroy()
}

// destroy frees what exists.
func (c *Conn) destroy() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
		c.poller.Wait()
	}
	c.mu.Lock()
	if c.timer != nil {
		c.timer.Stop()
	}
	if !c.ended {
		c.ended = true
		close(c.down)
	}
	rcs := c.rcs
	mrs := []*roce.MR{c.in.mr, c.out.mr, c.memory}
	c.mu.Unlock()
	var errs []error
	for _, rc := range rcs {
		if rc != nil {
			errs = append(errs, rc.Close())
		}
	}
	for _, q := range append(c.data, c.ctl) {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	for _, mr := range mrs {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if c.srq != nil {
		errs = append(errs, c.srq.Close())
	}
	if c.cq != nil {
		errs = append(errs, c.cq.Close())
	}
	if c.pd != nil {
		errs = append(errs, c.pd.Close())
	}
	if c.cleanup != nil {
		c.cleanup()
	}
	return errors.Join(errs...)
}

// sleep waits until e may have happened.
func (c *Conn) sleep(ctx context.Context, e event) error {
	switch {
	case c.cfg.Wait != nil:
		c.mu.Lock()
		gen := c.wakes[e].gen
		c.mu.Unlock()
		return c.cfg.Wait(ctx, func() bool {
			for c.Progress() > 0 {
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			return c.wakes[e].gen != gen || c.ended
		})
	case c.drive:
		return c.runUntil(ctx, e)
	case c.manual:
		if c.Progress() > 0 {
			return nil
		}
		if err := c.dev.Err(); err != nil {
			return err
		}
		runtime.Gosched()
		return ctx.Err()
	}
	return c.await(ctx, e)
}

// await is sleep while others drive the Conn.
func (c *Conn) await(ctx context.Context, e event) error {
	select {
	case <-c.wakes[e].c:
		return nil
	case <-c.down:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// signal wakes a goroutine that waits for e. One that does not need all of it signals again.
func (c *Conn) signal(e event) {
	c.wakes[e].gen++
	select {
	case c.wakes[e].c <- struct{}{}:
	default:
	}
}

// NextTimeout returns when, on Config.Clock in nanoseconds, Progress must be called even if nothing
// arrives; false: no timer runs.
func (c *Conn) NextTimeout() (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		return 0, false
	}
	t := c.m.Timeout()
	return int64(t), t != core.Never
}

// napOf returns how long to wait for a time of the system's clock.
func (c *Conn) napOf(t core.Time) time.Duration {
	return max(0, time.Duration(min(int64(t)-c.now(), math.MaxInt64/2)))
}
