package service

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/udp"
)

// client is the member's side of a connection. It implements udp.Provider.
type client struct {
	w       *wire
	path    string
	slot    uint8
	limits  driver.Limits
	mads    int
	changed chan struct{}
	done    chan struct{} // closed when the connection has ended
	ended   sync.Once
	closed  atomic.Bool
	state   atomic.Pointer[netState]
	report  atomic.Pointer[func() []byte]

	mu      sync.Mutex
	last    uint64 // ID of a request
	waiting map[uint64]chan response
	wills   map[uint32][]byte // to be sent
	kick    chan struct{}     // there are wills, or mixed is set
	mixed   bool
}

// response is a response with its descriptor, or -1.
type response struct {
	message
	fd int
}

// connect connects to a service, unless another user may have replaced its socket.
func connect(path string) (*net.UnixConn, error) {
	if err := checkDir(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNone, err)
	}
	end := time.Now().Add(requestPatience)
	c, err := dial(path)
	// EAGAIN: other programs connect faster than the service accepts them.
	for errors.Is(err, unix.EAGAIN) && time.Now().Before(end) {
		time.Sleep(connectPause)
		c, err = dial(path)
	}
	switch {
	case err == nil:
		return c, nil
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w that this user may use at %s: see --socket-mode and "+
			"--socket-group of `gorxe up`: %w", ErrNone, path, err)
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ECONNREFUSED),
		errors.Is(err, unix.ENOTDIR):
		return nil, fmt.Errorf("%w at %s: %w", ErrNone, path, err)
	}
	return nil, fmt.Errorf("connect to the node service: %w", err)
}

const (
	// requestPatience is how long a request waits for its response, and a connection for its turn.
	requestPatience = 5 * time.Second
	// connectPause is the time between two attempts to connect.
	connectPause = 2 * time.Millisecond
)

// open joins a service.
func open(path string, o *JoinOptions) (*client, error) {
	conn, err := connect(path)
	if err != nil {
		return nil, err
	}
	c := &client{w: newMemberWire(conn), path: path, changed: make(chan struct{}, 1),
		done: make(chan struct{}), waiting: map[uint64]chan response{},
		wills: map[uint32][]byte{}, kick: make(chan struct{}, 1)}
	_ = conn.SetReadDeadline(time.Now().Add(requestPatience))
	err = c.w.send(&message{Op: opJoin, ID: 1, Version: version, Name: o.Name, Addr: o.Addr}, -1)
	var m message
	fd := -1
	if err == nil {
		fd, err = c.w.receive(&m)
	}
	if err == nil {
		err = m.err()
	}
	if err == nil && (m.State == nil || m.Slot == 0 || m.Slot > driver.MaxSlot || fd < 0) {
		err = errProtocol
	}
	if l := m.Limits; err == nil && l != nil {
		if l.QPs < 0 || l.MRs < 0 {
			err = errProtocol
		}
		c.limits = *l
	}
	if err == nil && o.SameNet {
		err = sameNet(m.Net, o.NetNS)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		_ = conn.Close()
		return nil, fmt.Errorf("join the node service at %s: %w", path, err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	c.slot, c.mads = m.Slot, fd
	c.setState(m.State)
	go c.read()
	go c.sendWills()
	return c, nil
}

// setState takes over what the service says about the network.
func (c *client) setState(st *netState) {
	st.Info.Service = c.path
	c.state.Store(st)
}

// end ends the connection. Requests in progress return an error.
func (c *client) end() {
	c.ended.Do(func() {
		close(c.done)
		_ = c.w.c.Close()
		c.notify()
	})
}

func (c *client) notify() { signal(c.changed) }

// signal sends a value to a channel of capacity 1, unless it has one.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// read takes responses and events until the connection ends.
func (c *client) read() {
	defer c.end()
	for {
		var m message
		fd, err := c.w.receive(&m)
		if err != nil {
			return
		}
		switch {
		case m.Op == evState && m.State != nil:
			c.setState(m.State)
			c.notify()
		case m.Op == opReport:
			go c.sendReport(m.ID)
		default:
			c.mu.Lock()
			wait := c.waiting[m.ID]
			delete(c.waiting, m.ID)
			c.mu.Unlock()
			if wait != nil {
				wait <- response{m, fd}
				fd = -1
			}
		}
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// err returns the error after the connection has ended.
func (c *client) err() error {
	if c.closed.Load() {
		return driver.ErrClosed
	}
	return driver.ErrServiceEnded
}

// request sends a request and waits for the response, at most requestPatience.
func (c *client) request(ctx context.Context, m *message) (r response, err error) {
	wait := make(chan response, 1)
	c.mu.Lock()
	c.last++
	m.ID = c.last
	c.waiting[m.ID] = wait
	c.mu.Unlock()
	forget := func(cause error) (response, error) {
		c.mu.Lock()
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		select {
		case r := <-wait: // it came at the same time
			if r.fd >= 0 {
				_ = unix.Close(r.fd)
			}
		default:
		}
		return response{fd: -1}, cause
	}
	if err := c.w.send(m, -1); err != nil {
		select {
		case <-c.done:
			err = c.err()
		default:
		}
		return forget(err)
	}
	late := time.NewTimer(requestPatience)
	defer late.Stop()
	select {
	case r = <-wait:
		return r, r.message.err()
	case <-c.done:
		return forget(c.err())
	case <-ctx.Done():
		return forget(ctx.Err())
	case <-late.C:
		return forget(fmt.Errorf("the node service does not answer: %w", context.DeadlineExceeded))
	}
}

// State implements udp.Provider.
func (c *client) State() (udp.Provided, error) {
	select {
	case <-c.done:
		return udp.Provided{}, c.err()
	default:
	}
	st := c.state.Load()
	return udp.Provided{Info: st.Info, Index: st.Index, Addrs: st.Addrs, Slot: c.slot,
		MADs: c.mads}, nil
}

// Changed implements udp.Provider.
func (c *client) Changed() <-chan struct{} { return c.changed }

// Open implements udp.Provider.
func (c *client) Open(a netip.Addr) (fd int, err error) {
	r, err := c.request(context.Background(), &message{Op: opSocket, Addr: a})
	if err == nil && r.fd < 0 {
		err = errProtocol
	}
	if err != nil {
		if r.fd >= 0 {
			_ = unix.Close(r.fd)
		}
		return -1, err
	}
	return r.fd, nil
}

// Closed implements udp.Provider.
func (c *client) Closed(a netip.Addr) { _ = c.w.send(&message{Op: opClose, Addr: a}, -1) }

// Resolve implements udp.Provider.
func (c *client) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	r, err := c.request(ctx, &message{Op: opResolve, Src: src, Dst: dst})
	if err == nil && r.Hop == nil {
		err = errProtocol
	}
	if err != nil {
		return driver.Hop{}, err
	}
	return *r.Hop, nil
}

// Close implements udp.Provider.
func (c *client) Close() {
	if c.closed.Swap(true) {
		return
	}
	_ = c.w.send(&message{Op: opLeave}, -1)
	c.end()
}

// setWill gives the service a frame, soon.
func (c *client) setWill(key uint32, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.wills[key]; !ok && len(c.wills) == maxWills {
		return
	}
	c.wills[key] = append([]byte(nil), b...)
	signal(c.kick)
}

// Mixed implements udp.Provider.
func (c *client) Mixed() {
	c.mu.Lock()
	c.mixed = true
	c.mu.Unlock()
	signal(c.kick)
}

// sendWills sends wills, and what Mixed says, until the connection ends.
func (c *client) sendWills() {
	for {
		select {
		case <-c.done:
			return
		case <-c.kick:
		}
		c.mu.Lock()
		list := c.wills
		c.wills = map[uint32][]byte{}
		mixed := c.mixed
		c.mixed = false
		c.mu.Unlock()
		if mixed && c.w.send(&message{Op: opMixed}, -1) != nil {
			c.end()
			return
		}
		for key, b := range list {
			if c.w.send(&message{Op: opWill, Key: key, Frame: b}, -1) != nil {
				c.end()
				return
			}
		}
	}
}

// sendReport answers a request for a report.
func (c *client) sendReport(id uint64) {
	var b []byte
	if f := c.report.Load(); f != nil {
		if b = (*f)(); len(b) > MaxReport {
			b = nil
		}
	}
	_ = c.w.sendParts(message{Op: opReport, ID: id}, b)
}
