package rsocket

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// noise returns random bytes.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 7))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// Both sides send at the same time, in pieces of random lengths, on a link that loses, duplicates
// and reorders packets.
func TestStreamOnBadLink(t *testing.T) {
	const size = 1 << 20
	bothModes(t, func(t *testing.T, p roce.Progress) {
		bed := newTestbed(t, testbed.Config{
			Options: []roce.Option{roce.WithProgress(p)}, Seed: 3,
			Plan: loopback.Plan{Loss: 0.01, Duplicate: 0.01, Reorder: 0.01},
		})
		cfg := Config{ReadBuffer: 64 << 10, WriteBuffer: 32 << 10, Messages: 20}
		client, server := dial(t, bed, listenOn(t, bed, cfg), cfg)
		if p == roce.Manual { // a side that has finished answers what the other one sends again
			defer drive(bed.Dev[:]...)()
		}
		failed := make(chan error, 4)
		for i, c := range []*Conn{client, server} {
			check(t, c.SetDeadline(time.Now().Add(patience)))
			go func() { failed <- sendPieces(c, noise(size, uint64(i)), uint64(i)) }()
			go func() { failed <- receivePieces(c, noise(size, uint64(1-i)), uint64(i)) }()
		}
		for range cap(failed) {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
	})
}

func sendPieces(c *Conn, data []byte, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 1))
	for len(data) > 0 {
		n := min(len(data), 1+r.IntN(1<<r.IntN(18)))
		if _, err := c.Write(data[:n]); err != nil {
			return err
		}
		data = data[n:]
	}
	return c.CloseWrite()
}

func receivePieces(c *Conn, want []byte, seed uint64) error {
	r := rand.New(rand.NewPCG(seed, 2))
	var got []byte
	for {
		b := make([]byte, 1+r.IntN(1<<r.IntN(18)))
		n, err := c.Read(b)
		if got = append(got, b[:n]...); err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	if !bytes.Equal(got, want) {
		return errors.New("the stream differs from what was sent")
	}
	return nil
}

// io.Copy in both directions uses ReadFrom and WriteTo.
func TestCopy(t *testing.T) {
	client, server := newPair(t, Config{ReadBuffer: MinBuffer, WriteBuffer: MinBuffer})
	data := noise(1<<20, 1)
	go func() {
		_, _ = io.Copy(client, iotest.HalfReader(bytes.NewReader(data)))
		_ = client.CloseWrite() // the other side finds an error
	}()
	h := sha256.New()
	n, err := io.Copy(h, server)
	if err != nil || n != int64(len(data)) || [32]byte(h.Sum(nil)) != sha256.Sum256(data) {
		t.Errorf("io.Copy() = %d, %v; want %d bytes as sent", n, err, len(data))
	}
}

// After CloseWrite the peer reads the rest and io.EOF, and can still write.
func TestCloseWrite(t *testing.T) {
	client, server := newPair(t, Config{})
	write(t, client, "question")
	check(t, client.CloseWrite())
	wantErrno(t, "Write after CloseWrite", writeErr(client), syscall.EPIPE)
	wantErrno(t, "second CloseWrite", client.CloseWrite(), syscall.EPIPE)
	if b, err := io.ReadAll(server); string(b) != "question" || err != nil {
		t.Fatalf("ReadAll() = %q, %v; want the question", b, err)
	}
	write(t, server, "answer")
	check(t, server.Close())
	if b, err := io.ReadAll(client); string(b) != "answer" || err != nil {
		t.Fatalf("ReadAll() = %q, %v; want the answer", b, err)
	}
	check(t, client.Close())
}

// Close delivers what was written. The peer's writes fail afterwards.
func TestClose(t *testing.T) {
	client, server := newPair(t, Config{})
	write(t, client, "last words")
	check(t, client.Close())
	if err := client.Close(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("second Close() = %v, want net.ErrClosed", err)
	}
	if err := client.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("SetDeadline() = %v, want net.ErrClosed", err)
	}
	if b, err := io.ReadAll(server); string(b) != "last words" || err != nil {
		t.Errorf("ReadAll() = %q, %v; want the last words", b, err)
	}
	wantErrno(t, "Write to a closed peer", writeErr(server), syscall.EPIPE)
	if _, err := client.Read(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read() = %v, want net.ErrClosed", err)
	}
}

// A Write that fails because the peer has closed leaves what the peer has sent.
func TestReadAfterFailedWrite(t *testing.T) {
	client, server := newPair(t, Config{})
	write(t, client, "last words")
	check(t, client.Close())
	<-server.rc.Done()
	wantErrno(t, "Write to a closed peer", writeErr(server), syscall.EPIPE)
	if b, err := io.ReadAll(server); string(b) != "last words" || err != nil {
		t.Errorf("ReadAll() = %q, %v; want the last words", b, err)
	}
}

// A connection that ends without the end of the stream is an error, not io.EOF.
func TestAbort(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	l := listenOn(t, bed, Config{})
	client, server := dial(t, bed, l, Config{})
	client.SetLinger(0)
	check(t, client.Close())
	_, err := server.Read(make([]byte, 1))
	wantErrno(t, "Read from a peer that aborted", err, syscall.ECONNRESET)
	wantErrno(t, "Write to a peer that aborted", writeErr(server), syscall.ECONNRESET)

	client, server = dial(t, bed, l, Config{})
	check(t, bed.Dev[0].Close())
	_, err = server.Read(make([]byte, 1))
	wantErrno(t, "Read from a closed device", err, syscall.ECONNRESET)
	if _, err = client.Read(make([]byte, 1)); !errors.Is(err, roce.ErrClosed) {
		t.Errorf("Read() on a closed device = %v, want ErrClosed", err)
	}
	check(t, client.Close())
}

// Calls that wait end when another goroutine closes the connection.
func TestCloseEndsCalls(t *testing.T) {
	bothModes(t, func(t *testing.T, p roce.Progress) {
		bed := newTestbed(t, testbed.Config{Options: []roce.Option{roce.WithProgress(p)}})
		cfg := Config{ReadBuffer: MinBuffer, WriteBuffer: MinBuffer, Linger: -1}
		client, _ := dial(t, bed, listenOn(t, bed, cfg), cfg)
		failed := make(chan error, 2)
		go func() {
			_, err := client.Read(make([]byte, 1))
			failed <- err
		}()
		go func() {
			_, err := client.Write(make([]byte, 1<<20))
			failed <- err
		}()
		for waiting := 0; waiting < 1; runtime.Gosched() { // one leads, the other may follow
			client.mu.Lock()
			if waiting = 0; client.wait.leading {
				waiting++
			}
			client.mu.Unlock()
		}
		check(t, client.Close())
		for range cap(failed) {
			if err := <-failed; !errors.Is(err, net.ErrClosed) {
				t.Errorf("call during Close: %v, want net.ErrClosed", err)
			}
		}
	})
}

func TestDeadlines(t *testing.T) {
	client, server := newPair(t, Config{ReadBuffer: MinBuffer, WriteBuffer: MinBuffer})
	check(t, client.SetDeadline(time.Now().Add(20*time.Millisecond)))
	_, err := client.Read(make([]byte, 1))
	wantTimeout(t, "Read", err)
	n, err := client.Write(make([]byte, 1<<20))
	wantTimeout(t, "Write", err)
	check(t, client.SetDeadline(time.Time{}))
	if _, err := io.ReadFull(server, make([]byte, n)); err != nil {
		t.Errorf("ReadFull() = %v, want the %d bytes of the Write that timed out", err, n)
	}
	write(t, server, "late")
	if _, err := io.ReadFull(client, make([]byte, 4)); err != nil {
		t.Errorf("ReadFull() after a timeout = %v", err)
	}
}

func wantTimeout(t *testing.T, what string, err error) {
	t.Helper()
	var op *net.OpError
	if !errors.As(err, &op) || !op.Timeout() || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s: %v, want a net.OpError of os.ErrDeadlineExceeded", what, err)
	}
}

// wantErrno checks that an error is one that a TCP socket would give, and says more.
func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	var op *net.OpError
	if !errors.Is(err, want) || !errors.As(err, &op) {
		t.Errorf("%s: %v, want a net.OpError of %q", what, err, want)
	}
}

// A server that gives up before it has seen the confirmation refuses a client that is connected.
func TestRefusedAfterDial(t *testing.T) {
	cause := fmt.Errorf("%w: %w", roce.ErrDisconnected, &roce.RejectError{})
	err := opError("read", nil, nil, lost(cause))
	wantErrno(t, "Read", err, syscall.ECONNRESET)
	if errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("Read: %v is %v", err, syscall.ECONNREFUSED)
	}
	err = opError("dial", nil, nil, &roce.RejectError{})
	wantErrno(t, "Dial", err, syscall.ECONNREFUSED)
}

func TestDialErrors(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := Dial(ctx, bed.Dev[0], bed.Addr(1, 9).String(), Config{})
	wantErrno(t, "Dial without a listener", err, syscall.ECONNREFUSED)
	if _, err = Dial(ctx, bed.Dev[0], "no port", Config{}); err == nil {
		t.Error("Dial() without a port succeeds")
	}
	if _, err = Dial(ctx, bed.Dev[0], bed.Addr(1, 9).String(), Config{ReadBuffer: 1}); !errors.Is(err,
		errConfig) {
		t.Errorf("Dial() with a tiny buffer = %v, want %v", err, errConfig)
	}
	d := Dialer{Device: bed.Dev[0]}
	if c, err := d.DialContext(ctx, "udp", bed.Addr(1, 9).String()); c != nil || err == nil {
		t.Errorf("DialContext(udp) = %v, %v; want nil and an error", c, err)
	}
	if _, err := Listen(bed.Dev[0], "nowhere", Config{}); err == nil {
		t.Error("Listen() at no address succeeds")
	}
}

func TestMap(t *testing.T) {
	client, server := newPair(t, Config{Mappings: 2})
	memory, err := server.Map(make([]byte, 100), 1000)
	check(t, err)
	write(t, server, "mapped") // follows the announcement
	if _, err := io.ReadFull(client, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if n, err := client.WriteAt([]byte("here"), 1096); n != 4 || err != nil {
		t.Fatalf("WriteAt() = %d, %v", n, err)
	}
	write(t, client, "written") // arrives after it
	if _, err := io.ReadFull(server, make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if got := string(memory.Bytes()[96:]); got != "here" {
		t.Errorf("the memory contains %q, want %q", got, "here")
	}
	n, err := client.WriteAt([]byte("across"), 1097)
	if n != 3 {
		t.Errorf("WriteAt() across the end = %d, want 3", n)
	}
	wantErrno(t, "WriteAt across the end", err, syscall.EFAULT)
	_, err = client.WriteAt([]byte("before"), -1)
	wantErrno(t, "WriteAt before the beginning", err, syscall.EFAULT)
	if !strings.Contains(err.Error(), "offset -1:") {
		t.Errorf("WriteAt at -1: %v, want that it names the offset", err)
	}
	_, err = server.Map(make([]byte, 8), 0)
	check(t, err)
	_, err = server.Map(make([]byte, 8), 0)
	wantErrno(t, "third Map", err, syscall.ENOSPC)
}

// The length of memory on the wire has 32 bits.
func TestMapLong(t *testing.T) {
	_, server := newPair(t, Config{Mappings: 1})
	long, err := unix.Mmap(-1, 0, 1<<32+8, unix.PROT_NONE, // takes addresses, but no memory
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		t.Skip("no address space of 4 GiB: ", err)
	}
	defer unix.Munmap(long)
	_, err = server.Map(long, 0)
	wantErrno(t, "Map of 4 GiB and 8 bytes", err, syscall.EINVAL)
}

// Reads and writes do not allocate.
func TestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	client, server := newPair(t, Config{})
	buf := make([]byte, 100_000)
	step := func() {
		if _, err := client.Write(buf); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(server, buf); err != nil {
			t.Error(err)
		}
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(300, step); n > 0 {
		t.Errorf("%v allocations per write and read, want 0", n)
	}
}

// Connections and listeners leave no goroutines and no memory of the device behind.
func TestNoLeaks(t *testing.T) {
	bed := newTestbed(t, testbed.Config{Options: []roce.Option{
		roce.WithExpert(roce.Expert{MaxPD: 2, MaxMR: 4})}}) // for two connections of a device
	before := runtime.NumGoroutine()
	for range 5 {
		l := listenOn(t, bed, Config{})
		client, server, err := tryDial(bed, l, Config{})
		if err != nil {
			t.Fatal(err)
		}
		write(t, client, "x")
		check(t, client.Close())
		check(t, server.Close())
		check(t, l.Close())
		if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept() = %v, want net.ErrClosed", err)
		}
	}
	for end := time.Now().Add(patience); runtime.NumGoroutine() > before; {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, want %d", runtime.NumGoroutine(), before)
		}
		time.Sleep(time.Millisecond)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, c *Conn, s string) {
	t.Helper()
	if n, err := c.Write([]byte(s)); n != len(s) || err != nil {
		t.Fatalf("Write() = %d, %v", n, err)
	}
}

// writeErr returns the error of writes, which may come late.
func writeErr(c *Conn) error {
	_ = c.SetWriteDeadline(time.Now().Add(patience))
	for {
		if _, err := c.Write(make([]byte, 1<<10)); err != nil {
			return err
		}
	}
}

// In a bubble, delays and deadlines are those of its time.
func TestSynctest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay = 100 * time.Millisecond
		bed := newTestbed(t, testbed.Config{Plan: loopback.Plan{Delay: delay}})
		client, server := dial(t, bed, listenOn(t, bed, Config{}), Config{})
		start := time.Now()
		write(t, client, "x")
		if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < delay || d > delay+time.Millisecond {
			t.Errorf("the byte arrives after %v, want %v", d, delay)
		}
		start = time.Now()
		check(t, client.SetReadDeadline(start.Add(time.Hour)))
		_, err := client.Read(make([]byte, 1))
		wantTimeout(t, "Read", err)
		if d := time.Since(start); d < time.Hour || d > time.Hour+time.Millisecond {
			t.Errorf("Read waits for %v, want an hour", d)
		}
	})
}

// The memory of a connection with default buffers gets no huge pages, so that an idle connection
// does not use all of it.
func TestBufferPages(t *testing.T) {
	bed := newTestbed(t, testbed.Config{})
	c, err := Config{Mappings: core.MaxMaps}.complete()
	check(t, err)
	e, err := newEndpoint(bed.Dev[0], &c)
	check(t, err)
	const huge = 2 << 20
	if e.open.Len() >= huge || e.send.Len() >= huge {
		t.Errorf("regions of %d and %d bytes, want less than %d", e.open.Len(), e.send.Len(), huge)
	}
	check(t, e.close())
}

func TestNilDevice(t *testing.T) {
	if _, err := Listen(nil, ":1", Config{}); !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Listen() = %v, want %v", err, roce.ErrInvalid)
	}
	_, err := Dial(t.Context(), nil, "10.77.0.2:1", Config{})
	if !errors.Is(err, roce.ErrInvalid) {
		t.Errorf("Dial() = %v, want %v", err, roce.ErrInvalid)
	}
}
