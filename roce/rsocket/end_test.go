package rsocket

import (
	"errors"
	"io"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// If the peer dies, Close fails if it has not acknowledged what was written.
func TestCloseDeadPeer(t *testing.T) {
	const short = time.Second // a dead peer is found after 4.3 s
	for _, c := range []struct {
		name   string
		linger time.Duration
		acked  bool // what was written
		half   bool // CloseWrite instead of Close
		want   string
	}{
		{"acknowledged, short", short, true, false, ""},
		{"acknowledged", 0, true, false, ""},
		{"short", short, false, false, "does not answer, or the network is slow"},
		{"long", 0, false, false, "the peer does not answer"},
		{"CloseWrite", 0, false, true, "the peer does not answer"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bed := newTestbed(t, testbed.Config{})
				client, server, err := tryDial(bed, listenOn(t, bed, Config{}), Config{Linger: c.linger})
				check(t, err)
				die := func() {
					check(t, bed.Link.SetPlan(0, 1, loopback.Plan{Loss: 1}))
					check(t, bed.Link.SetPlan(1, 0, loopback.Plan{Loss: 1}))
				}
				if !c.acked {
					die()
				}
				write(t, client, "x")
				time.Sleep(time.Second)
				if c.acked {
					die()
				}
				if c.half {
					err = client.CloseWrite()
				} else {
					err = client.Close()
				}
				if c.want == "" && err != nil ||
					c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("%v, want %q", err, c.want)
				}
				_, _ = client.abort(), server.abort()
			})
		})
	}
}

// Map fails if the connection fails while it waits to tell the peer.
func TestMapDeadPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bed := newTestbed(t, testbed.Config{})
		l := listenOn(t, bed, Config{})
		client, server, err := tryDial(bed, l, Config{Mappings: 64})
		check(t, err)
		check(t, bed.Link.SetPlan(0, 1, loopback.Plan{Loss: 1}))
		check(t, bed.Link.SetPlan(1, 0, loopback.Plan{Loss: 1}))
		for i := 0; err == nil && i < 64; i++ {
			_, err = server.Map(make([]byte, 8), int64(8*i))
			if err == nil && server.rc.Err() != nil {
				t.Errorf("Map %d succeeds although the connection has failed: %v", i, server.rc.Err())
			}
		}
		if err == nil || !strings.Contains(err.Error(), "the peer does not answer") {
			t.Errorf("Map() = %v, want that the peer does not answer", err)
		}
		_, _ = client.abort(), server.abort()
	})
}

// A program that only writes learns of the end of the connection before the space ends.
func TestWriteAfterEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bed := newTestbed(t, testbed.Config{})
		l := listenOn(t, bed, Config{Mappings: 1})
		for _, aborts := range []bool{false, true} {
			for _, mapped := range []bool{false, true} {
				client, server, err := tryDial(bed, l, Config{})
				check(t, err)
				write := func() error { _, err := client.Write([]byte("x")); return err }
				if mapped {
					write = func() error { _, err := client.WriteAt([]byte("x"), 0); return err }
				}
				want := syscall.EPIPE
				if aborts {
					want = syscall.ECONNRESET
					check(t, server.abort())
				} else {
					check(t, server.Close())
				}
				time.Sleep(time.Second)
				if err := write(); !errors.Is(err, want) {
					t.Errorf("aborts %v, mapped %v: %v, want %v", aborts, mapped, err, want)
				}
				check(t, client.Close())
			}
		}
	})
}

// If the peer aborts the connection, Close returns nil if the peer has acknowledged all data.
func TestCloseAborted(t *testing.T) {
	client, server := newPair(t, Config{})
	write(t, client, "x")
	if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	check(t, server.abort())
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Read() = %v, want %v", err, syscall.ECONNRESET)
	}
	check(t, client.Close())
}

// Close answers a peer that has ended the connection until the peer disconnects, too.
func TestFarewell(t *testing.T) {
	client, server := newPair(t, Config{})
	check(t, client.CloseWrite())
	expectEnd(t, server)
	check(t, server.CloseWrite()) // ends both directions
	expectEnd(t, client)
	expectFarewell(t, client, server)
}

// So it does if both sides end the connection at the same time and the peer is not gorxe.
func TestFarewellAtSameTime(t *testing.T) {
	client, server := newPair(t, Config{})
	peer := server.stream.Hello()
	peer.Leaves = false // as librdmacm says
	client.mu.Lock()
	client.stream.Open(peer)
	client.mu.Unlock()
	disconnectBoth(client, server)
	expectEnd(t, client)
	expectFarewell(t, client, server)
}

// Two programs of gorxe that end the connection at the same time do not wait for each other, also
// without selective repeat.
func TestNoFarewell(t *testing.T) {
	bed := newTestbed(t, testbed.Config{Options: []roce.Option{roce.WithSelectiveRepeat(false)}})
	client, server := dial(t, bed, listenOn(t, bed, Config{}), Config{})
	disconnectBoth(client, server)
	expectEnd(t, client)
	start := time.Now()
	check(t, client.Close())
	if d := time.Since(start); d >= farewellTime {
		t.Errorf("Close waits for %v", d)
	}
}

// disconnectBoth ends both directions of both sides, as Close does.
func disconnectBoth(client, server *Conn) {
	for _, c := range []*Conn{client, server} {
		c.mu.Lock()
		c.stream.Disconnect()
		c.control()
		c.mu.Unlock()
	}
}

// expectEnd checks that the peer ends the stream.
func expectEnd(t *testing.T, c *Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Fatalf("Read() = %d, %v; want EOF", n, err)
	}
}

// expectFarewell checks that client.Close waits until the server disconnects.
func expectFarewell(t *testing.T, client, server *Conn) {
	t.Helper()
	start, closed := time.Now(), make(chan error, 1)
	go func() { closed <- client.Close() }()
	for waits := false; !waits; runtime.Gosched() {
		select {
		case err := <-closed:
			if d := time.Since(start); d < farewellTime {
				t.Fatalf("Close() = %v after %v, before the peer has disconnected", err, d)
			}
			t.Skip("the machine is too slow to see Close wait")
		default:
			client.mu.Lock()
			waits = client.closed && client.wait.leading
			client.mu.Unlock()
		}
	}
	if err := client.rc.Err(); err != nil && time.Since(start) < farewellTime {
		t.Errorf("the connection has ended while the peer may need an answer: %v", err)
	}
	server.SetLinger(0) // it does not wait for the client
	check(t, server.Close())
	check(t, <-closed)
}
