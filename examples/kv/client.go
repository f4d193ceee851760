package main

import (
	"context"
	"errors"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// A client of one node.
type client struct {
	conn  *messenger.Conn
	table roce.RemoteBuffer
}

// dial connects to the node at addr.
func dial(ctx context.Context, dev *roce.Device, addr netip.AddrPort) (*client, error) {
	conn, err := messenger.Dial(ctx, dev, addr, messenger.Config{})
	if err != nil {
		return nil, err
	}
	c := &client{conn: conn}
	if c.table, err = remoteTable(ctx, conn, "table"); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

// put stores a pair. It returns when the node and its backups have stored it.
func (c *client) put(ctx context.Context, key, value string) error {
	m, err := c.conn.Call(ctx, []byte("put\x00"+key+"\x00"+value))
	if err == nil {
		m.Release()
	}
	return err
}

// get returns the value of a key. It READs the node's memory: the node's program is not involved.
func (c *client) get(ctx context.Context, key string) (string, error) {
	slot := make([]byte, slotLen)
	for {
		_, value, err := find(key, func(off int) ([]byte, error) {
			return slot, c.conn.ReadAt(ctx, slot, c.table, uint64(off))
		})
		if !errors.Is(err, errTorn) {
			return value, err
		}
	}
}
