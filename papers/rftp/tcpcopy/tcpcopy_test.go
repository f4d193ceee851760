package tcpcopy

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// A file arrives byte for byte with each method, also if it is empty or ends within a block.
func TestCopy(t *testing.T) {
	for _, c := range []struct {
		name string
		job  Job
		size int
	}{
		{"one stream", Job{Method: Blocks, Streams: 1}, 3*BlockSize + 17},
		{"eight streams", Job{Method: Blocks, Streams: 8}, 20*BlockSize + 1},
		{"fewer blocks than streams", Job{Method: Blocks, Streams: 8}, 100},
		{"empty", Job{Method: Blocks, Streams: 2}, 0},
		{"sendfile", Job{Method: Stream}, 3*BlockSize + 17},
		{"sendfile, empty", Job{Method: Stream}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := make([]byte, c.size)
			r := rand.NewChaCha8([32]byte{1})
			_, _ = r.Read(data)
			from, to := t.TempDir(), t.TempDir()
			c.job.Path = filepath.Join(from, "file")
			if err := os.WriteFile(c.job.Path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			sent, received := transfer(t, c.job, to)
			if sent != int64(c.size) || received != sent {
				t.Errorf("sent %d and received %d bytes, want %d", sent, received, c.size)
			}
			got, err := os.ReadFile(filepath.Join(to, "file"))
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%d bytes arrived, error %v; want the %d bytes that were sent", len(got),
					err, len(data))
			}
		})
	}
}

// transfer runs both sides.
func transfer(t *testing.T, j Job, dir string) (sent, received int64) {
	t.Helper()
	l := listen(t)
	done := make(chan error, 1)
	go func() {
		var err error
		received, err = Receive(t.Context(), l, dir)
		done <- err
	}()
	sent, _, err := Send(t.Context(), l.Addr().String(), j)
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	return sent, received
}

func TestMemory(t *testing.T) {
	const size = 5*BlockSize + 3
	dir := t.TempDir()
	sent, received := transfer(t, Job{Method: Blocks, Streams: 3, Size: size}, dir)
	if sent != size || received != size {
		t.Errorf("sent %d and received %d bytes, want %d", sent, received, size)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("files %v, error %v; want none", list, err)
	}
}

// A receiver refuses greetings and blocks that do not belong to a copy, and writes nothing outside
// its directory.
func TestHostileSender(t *testing.T) {
	block := func(off, n byte) []byte {
		return []byte{0, 0, 0, 0, 0, 0, 0, off, 0, 0, 0, 0, 0, 0, 0, n, 'x'}
	}
	good := greeting{method: Blocks, streams: 1, size: 1, name: "file"}
	for _, c := range []struct {
		name string
		g    greeting
		data []byte
	}{
		{"name with a slash", greeting{method: Blocks, streams: 1, size: 1, name: "../file"}, nil},
		{"parent", greeting{method: Blocks, streams: 1, size: 1, name: ".."}, nil},
		{"no streams", greeting{method: Blocks, size: 1, name: "file"}, nil},
		{"unknown method", greeting{method: 9, streams: 1, size: 1, name: "file"}, nil},
		{"stream without a name", greeting{method: Stream, streams: 1, size: 1}, nil},
		{"block behind the end", good, block(1, 1)},
		{"block longer than the file", good, block(0, 2)},
		{"twice the same block", good, append(append(block(0, 1), block(0, 1)...), block(0, 0)...)},
		{"too few bytes", good, block(0, 0)},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listen(t)
			parent := t.TempDir()
			dir := filepath.Join(parent, "dir")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			conn, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := c.g.write(conn); err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(c.data); err != nil {
				t.Fatal(err)
			}
			if _, err := Receive(t.Context(), l, dir); !errors.Is(err, ErrPeer) {
				t.Errorf("Receive() = %v, want ErrPeer", err)
			}
			if _, err := os.Stat(filepath.Join(parent, "file")); !os.IsNotExist(err) {
				t.Errorf("a file outside the directory: %v", err)
			}
		})
	}
}

// Both sides end when their context does.
func TestCancel(t *testing.T) {
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Receive(ctx, l, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("Receive() = %v, want context.Canceled", err)
	}
	if _, _, err := Send(ctx, "127.0.0.1:1", Job{Method: Blocks, Streams: 1, Size: 1}); !errors.Is(
		err, context.Canceled) {
		t.Errorf("Send() = %v, want context.Canceled", err)
	}
}
