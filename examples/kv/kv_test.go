package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

func Example() {
	if err := run(context.Background(), nil); err != nil {
		fmt.Println(err)
	}
	// Output:
	// the primary has Earth
	// the backup has Earth
}

// cluster is a primary (0), a backup (1) and the device of a client (2).
type cluster struct {
	link  *loopback.Link
	nodes [2]*node
	addrs [2]netip.AddrPort
	dev   *roce.Device
}

func newCluster(t *testing.T, plan loopback.Plan) *cluster {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{Ports: 4, Seed: 7, Plan: plan})
	check(t, err)
	c := &cluster{link: link}
	for i := range c.nodes {
		c.addrs[i] = netip.AddrPortFrom(link.Port(i).Addrs()[0].Addr(), port)
		c.nodes[i] = c.start(t, i, c.addrs[i])
	}
	c.dev = c.device(t, 2)
	check(t, c.nodes[0].follow(t.Context(), c.addrs[1]))
	return c
}

// device returns a device on a port.
func (c *cluster) device(t *testing.T, port int) *roce.Device {
	t.Helper()
	dev, err := roce.New(c.link.Port(port))
	check(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// start starts a node on a port.
func (c *cluster) start(t *testing.T, port int, addr netip.AddrPort) *node {
	t.Helper()
	n, err := newNode(c.device(t, port), addr)
	check(t, err)
	go n.serve(t.Context())
	return n
}

// spare is a port for a host that starts again.
const spare = 3

func (c *cluster) dial(t *testing.T, node int) *client {
	t.Helper()
	cl, err := dial(t.Context(), c.dev, c.addrs[node])
	check(t, err)
	t.Cleanup(func() { _ = cl.conn.Close() })
	return cl
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestStore stores pairs over a network that loses and reorders packets, and compares the tables.
func TestStore(t *testing.T) {
	c := newCluster(t, loopback.Plan{Loss: 0.02, Reorder: 0.05})
	cl := c.dial(t, 0)
	const n = 100
	for i := range n {
		check(t, cl.put(t.Context(), fmt.Sprint("key ", i), "old"))
		check(t, cl.put(t.Context(), fmt.Sprint("key ", i), fmt.Sprint("value ", i)))
	}
	fromBackup := c.dial(t, 1)
	for i := range n {
		for who, cl := range []*client{cl, fromBackup} {
			got, err := cl.get(t.Context(), fmt.Sprint("key ", i))
			if want := fmt.Sprint("value ", i); err != nil || got != want {
				t.Errorf("node %d: get(key %d) = %q, %v, want %q", who, i, got, err, want)
			}
		}
	}
	if _, err := cl.get(t.Context(), "unknown"); !errors.Is(err, errNotFound) {
		t.Errorf("get(unknown): %v, want %v", err, errNotFound)
	}
	if err := cl.put(t.Context(), "", "x"); err == nil {
		t.Error("put accepted an empty key")
	}
	primary, backup := c.nodes[0], c.nodes[1]
	primary.mu.Lock()
	defer primary.mu.Unlock()
	for off := 0; off < tableLen; off += 8 {
		if primary.read.Load64(off) != backup.write.Load64(off) {
			t.Fatalf("the tables of the primary and the backup differ at offset %d", off)
		}
	}
}

// TestReadWhileChanging reads a key while it is changed all the time: a value is never torn.
func TestReadWhileChanging(t *testing.T) {
	c := newCluster(t, loopback.Plan{})
	cl, writer := c.dial(t, 0), c.dial(t, 0)
	ctx, stop := context.WithCancel(t.Context())
	values := []string{string(bytes.Repeat([]byte("a"), 100)), string(bytes.Repeat([]byte("b"), 100))}
	check(t, cl.put(ctx, "k", values[0]))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			_ = writer.put(ctx, "k", values[i%2]) // fails when ctx ends
		}
	}()
	for range 300 {
		got, err := cl.get(t.Context(), "k")
		if check(t, err); got != values[0] && got != values[1] {
			t.Fatalf("get returned a torn value: %q", got)
		}
	}
	stop()
	<-done
}

// TestFencing promotes the backup while the old primary is alive: it cannot write any more.
func TestFencing(t *testing.T) {
	c := newCluster(t, loopback.Plan{})
	old := c.dial(t, 0)
	check(t, old.put(t.Context(), "k", "before"))
	check(t, c.nodes[1].promote())
	for range 2 {
		if err := old.put(t.Context(), "k", "after"); err == nil {
			t.Error("the old primary stored a pair")
		}
	}
	cl := c.dial(t, 1)
	if got, err := cl.get(t.Context(), "k"); err != nil || got != "before" {
		t.Errorf("get from the new primary: %q, %v, want %q", got, err, "before")
	}
	check(t, cl.put(t.Context(), "k", "new"))
	if got, err := cl.get(t.Context(), "k"); err != nil || got != "new" {
		t.Errorf("get from the new primary: %q, %v, want %q", got, err, "new")
	}
}

// TestDeadBackup checks that a primary goes on without a backup that has died.
func TestDeadBackup(t *testing.T) {
	c := newCluster(t, loopback.Plan{})
	cl := c.dial(t, 0)
	check(t, c.nodes[1].close())
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	check(t, cl.put(ctx, "k", "v"))
	if got, err := cl.get(ctx, "k"); err != nil || got != "v" {
		t.Errorf("get = %q, %v, want %q", got, err, "v")
	}
}

// TestCrash crashes the primary and starts it again. In the bubble, the time-outs take no time.
func TestCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, loopback.Plan{})
		cl, backup := c.dial(t, 0), c.nodes[1]
		check(t, cl.put(t.Context(), "k", "v"))

		check(t, c.link.Port(0).Close()) // a crash: node 0 falls silent
		if err := cl.put(t.Context(), "k", "lost"); !errors.Is(err, roce.ErrConnLost) {
			t.Errorf("put after the crash: %v, want %v", err, roce.ErrConnLost)
		}
		check(t, backup.promote())

		c.link.Port(spare).SetAddrs(c.link.Port(0).Addrs()...) // the host starts again
		c.link.Port(0).SetAddrs()
		restarted := c.start(t, spare, c.addrs[0])
		check(t, backup.follow(t.Context(), c.addrs[0]))
		check(t, c.dial(t, 1).put(t.Context(), "k2", "v2"))
		if !bytes.Equal(restarted.table, backup.table) {
			t.Error("the tables differ")
		}
		if got, err := c.dial(t, 0).get(t.Context(), "k"); err != nil || got != "v" {
			t.Errorf("get from the restarted node: %q, %v, want %q", got, err, "v")
		}
	})
}

// TestDecodeSlot checks that no change of one byte of a slot is taken for a pair.
func TestDecodeSlot(t *testing.T) {
	s, err := encodeSlot("key", "value")
	check(t, err)
	if k, v, ok := decodeSlot(s); k != "key" || v != "value" || !ok {
		t.Errorf("decodeSlot = %q, %q, %v", k, v, ok)
	}
	for i := range s {
		s[i] ^= 0x55
		if _, _, ok := decodeSlot(s); ok {
			t.Errorf("a change of byte %d was not noticed", i)
		}
		s[i] ^= 0x55
	}
	if _, err := encodeSlot("k", string(make([]byte, maxPair))); !errors.Is(err, errTooLong) {
		t.Errorf("encodeSlot: %v, want %v", err, errTooLong)
	}
}

func TestUsage(t *testing.T) {
	if err := run(t.Context(), []string{"get"}); !errors.Is(err, errUsage) {
		t.Errorf("run(get): %v, want %v", err, errUsage)
	}
	if err := run(t.Context(), []string{"serve", "no-such-interface"}); !errors.Is(err,
		roce.ErrNoInterface) {
		t.Errorf("run(serve): %v, want %v", err, roce.ErrNoInterface)
	}
}
