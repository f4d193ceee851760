package rsocket

import (
	"bytes"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// silentPair returns a connection whose server acknowledges nothing until it is used.
func silentPair(t *testing.T) (client, server *Conn) {
	bed := newTestbed(t, testbed.Config{
		Device: [2][]roce.Option{{}, {roce.WithProgress(roce.Manual)}}})
	l := listenOn(t, bed, Config{})
	client, server = dial(t, bed, l, Config{})
	check(t, l.Close()) // its goroutine runs the device
	return client, server
}

// writePieces writes n pieces of 64 KiB, and returns the data and the number of WRITEs.
func writePieces(t *testing.T, c *Conn, n int) (data []byte, sends uint64) {
	t.Helper()
	data = noise(n*minChunk, 1)
	for p := range n {
		if _, err := c.Write(data[p*minChunk:][:minChunk]); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return data, c.collect.sends
}

// While much is in flight, several calls of Write make one WRITE. It is sent without further calls.
func TestCollect(t *testing.T) {
	client, server := silentPair(t)
	setArmed := func(armed bool) {
		client.mu.Lock()
		defer client.mu.Unlock()
		client.collect.armed = armed
	}
	setArmed(true) // no timer: on a busy machine the calls take longer than collectTime
	data, sends := writePieces(t, client, 7)
	if sends != 4 {
		t.Errorf("7 calls of Write made %d WRITEs, want 4", sends)
	}
	setArmed(false)
	client.overdue() // starts the timer: the last two pieces wait
	got := make([]byte, len(data))
	check(t, server.SetReadDeadline(time.Now().Add(patience)))
	if _, err := io.ReadFull(server, got); err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadFull() = %v, want the data as sent", err)
	}
}

// CloseWrite sends what waits.
func TestCollectCloseWrite(t *testing.T) {
	client, server := silentPair(t)
	data, _ := writePieces(t, client, 7)
	failed := make(chan error, 1)
	go func() { failed <- client.CloseWrite() }()
	check(t, server.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(server)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("ReadAll() = %d bytes, %v; want the %d bytes as sent", len(got), err, len(data))
	}
	for {
		select {
		case err := <-failed:
			check(t, err)
			return
		default:
			server.dev.Progress() // acknowledges
		}
	}
}

// A call that waits for the peer may wait for the answer to what is written: nothing is held back.
func TestCollectNotForReaders(t *testing.T) {
	client, _ := silentPair(t)
	go func() { _, _ = client.Read(make([]byte, 1)) }()
	for leading := false; !leading; runtime.Gosched() {
		client.mu.Lock()
		leading = client.wait.leading
		client.mu.Unlock()
	}
	if _, sends := writePieces(t, client, 7); sends != 7 {
		t.Errorf("7 calls of Write made %d WRITEs, want 7", sends)
	}
}
