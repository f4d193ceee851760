package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// A node holds a table. Clients READ it. The primary executes their puts and WRITEs each changed
// slot into the tables of its backups, whose programs take no part.
type node struct {
	dev   *roce.Device
	pd    *roce.PD
	table []byte
	read  *roce.MR // the table for clients
	write *roce.MR // the same memory for the primary of this node; closed by promote
	l     *roce.Listener

	mu      sync.Mutex // one put at a time
	backups []backup
	deposed bool // a backup has become the primary
}

// backup is a node that copies this one.
type backup struct {
	conn  *messenger.Conn
	table roce.RemoteBuffer
}

// newNode starts a node that listens at addr.
func newNode(dev *roce.Device, addr netip.AddrPort) (*node, error) {
	n := &node{dev: dev, table: make([]byte, tableLen)}
	var err error
	if n.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if n.read, err = n.pd.RegisterMR(n.table, roce.RemoteRead); err != nil {
		return nil, err
	}
	n.write, err = n.pd.RegisterMR(n.table, roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		return nil, err
	}
	n.l, err = dev.Listen(addr, roce.ListenOptions{})
	return n, err
}

// serve answers the calls of clients and of the primary until ctx is done.
func (n *node) serve(ctx context.Context) error {
	cfg := messenger.Config{PD: n.pd}
	c, h, err := messenger.ServeConfig(n.dev, cfg, messenger.Calls(n.handle))
	if err != nil {
		return err
	}
	return n.l.Serve(ctx, c, h)
}

// handle answers a call. The first byte of a request is the operation.
func (n *node) handle(ctx context.Context, req []byte) ([]byte, error) {
	op, rest, _ := bytes.Cut(req, []byte{0})
	switch string(op) {
	case "table": // a client asks where to READ
		return n.read.Remote().MarshalBinary()
	case "follow": // a primary asks where to WRITE
		return n.write.Remote().MarshalBinary()
	case "put":
		key, value, _ := bytes.Cut(rest, []byte{0})
		return nil, n.put(ctx, string(key), string(value))
	}
	return nil, fmt.Errorf("kv: unknown operation %q", op)
}

// put stores a pair, in the backups first: what a client can read has been replicated. It finishes
// even if the caller has gone, so that all tables stay equal.
func (n *node) put(ctx context.Context, key, value string) error {
	ctx = context.WithoutCancel(ctx)
	slot, err := encodeSlot(key, value)
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.deposed {
		return errDeposed
	}
	off, _, err := find(key, func(off int) ([]byte, error) {
		return n.table[off : off+slotLen], nil
	})
	if err != nil && !errors.Is(err, errNotFound) {
		return err
	}
	n.backups = slices.DeleteFunc(n.backups, func(b backup) bool {
		err := b.conn.WriteAt(ctx, slot, b.table, uint64(off))
		if err == nil {
			return false
		}
		if errors.Is(err, roce.RemAccessErr) {
			n.deposed = true // the backup was promoted
		}
		_ = b.conn.Close()
		return true // otherwise the backup has died: go on without it
	})
	if n.deposed {
		return errDeposed
	}
	copy(n.table[off:], slot)
	return nil
}

// follow makes the node at addr a backup of this one.
func (n *node) follow(ctx context.Context, addr netip.AddrPort) error {
	c, err := messenger.Dial(ctx, n.dev, addr, messenger.Config{})
	if err != nil {
		return err
	}
	b := backup{conn: c}
	if b.table, err = remoteTable(ctx, c, "follow"); err != nil {
		return errors.Join(err, c.Close())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := c.WriteAt(ctx, n.table, b.table, 0); err != nil { // what was stored so far
		return errors.Join(err, c.Close())
	}
	n.backups = append(n.backups, b)
	return nil
}

// promote makes a backup the primary. First it takes the right to write from the old primary, which
// may be alive behind a broken network: when Close has returned, no packet can change the table.
func (n *node) promote() error { return n.write.Close() }

// remoteTable asks a node for its table.
func remoteTable(ctx context.Context, c *messenger.Conn, op string) (b roce.RemoteBuffer, err error) {
	m, err := c.Call(ctx, []byte(op))
	if err != nil {
		return b, err
	}
	defer m.Release()
	return b, b.UnmarshalBinary(m.Bytes())
}

// close ends the node.
func (n *node) close() error { return n.dev.Close() }
