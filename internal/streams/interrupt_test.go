package streams

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// An interrupted receiver takes all packets that its device has acknowledged.
func TestInterruptedReceiver(t *testing.T) {
	s, r := newPair(t, statusbyte.Config{Blocks: 8, BlockSize: 100})
	const packets = 5
	for n := range packets {
		if err := s.Write(t.Context(), 3, []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d := NewDelivery(r, nil, Options{Timeout: 5 * time.Second})
	if err := d.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v, want context.Canceled", err)
	}
	var rep Report
	if d.Fill(&rep); len(rep.Devices) != 1 || rep.Devices[0].Packets != packets {
		t.Errorf("Devices = %+v, want one with %d packets", rep.Devices, packets)
	}
	if err := errors.Join(s.Write(t.Context(), 3, nil), s.Flush(t.Context())); !errors.Is(err,
		statusbyte.ErrBroken) {
		t.Errorf("the sender got error %v, want ErrBroken", err)
	}
}

// An interrupted sender ends even if its pipe is silent, and the data that was read arrives.
func TestInterruptedPipe(t *testing.T) {
	s, r := newPair(t, statusbyte.Config{Blocks: 2, BlockSize: 100})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	src := &file{dev: 1, f: in, len: -1}
	defer src.close()
	if _, err := out.WriteString("first"); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, cancel)
	sent := make(chan string, 1)
	go func() {
		all, err := Send(ctx, s, []Source{src}, func(int) {})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
		sent <- fmt.Sprint(all)
	}()
	d := NewDelivery(r, nil, Options{Timeout: 5 * time.Second})
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rep Report
	d.Fill(&rep)
	if a := <-sent; a != fmt.Sprint(rep.Devices) || rep.Devices[0].Bytes != 5 {
		t.Errorf("sent %s, received %v, want 5 bytes", a, rep.Devices)
	}
}

// receiveAll receives packets until the sender closes. It returns the numbers of bytes and packets,
// and whether the last packet had an end mark.
func receiveAll(ctx context.Context, t *testing.T, r *statusbyte.Receiver) (
	n, packets int, last bool) {
	t.Helper()
	for {
		b, err := r.Receive(ctx)
		if err == io.EOF {
			return n, packets, last
		}
		if err != nil {
			t.Fatal(err)
		}
		n, packets, last = n+len(b.Data), packets+1, b.Last
		b.Release()
	}
}

// An interruption truncates a file: Send returns an error and the stream has no end mark. A camera
// ends its stream after a complete frame, even if the sender is waiting for an empty block at that
// time.
func TestInterruptedWhileWaiting(t *testing.T) {
	for _, c := range []struct {
		name string
		src  func(t *testing.T) Source
		want error
	}{
		{"file", func(t *testing.T) Source {
			name := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(name, make([]byte, 1000), 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := OpenFiles([]string{name}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return list[0]
		}, context.Canceled},
		{"camera", func(*testing.T) Source {
			return &camera{frame: 400, period: time.Hour,
				frames: 10}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r := newPair(t, statusbyte.Config{Blocks: 2, BlockSize: 100})
			src := c.src(t)
			defer src.close()
			ctx, cancel := context.WithCancel(t.Context())
			done, packets := make(chan error, 1), make(chan int, 10)
			go func() {
				_, err := Send(ctx, s, []Source{src}, func(n int) { packets <- n })
				done <- err
			}()
			<-packets
			<-packets
			time.Sleep(20 * time.Millisecond) // the third one waits for an empty block
			cancel()
			ended := make(chan error, 1)
			go func() { ended <- errors.Join(<-done, s.Close()) }()
			wait, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			n, _, last := receiveAll(wait, t, r)
			if err := <-ended; !errors.Is(err, c.want) {
				t.Errorf("Send() = %v, want %v", err, c.want)
			}
			if whole := c.want == nil; last != whole || whole && n != 400 {
				t.Errorf("%d bytes with end mark %v, want a complete stream: %v", n, last, whole)
			}
		})
	}
}

// Data of a pipe is sent soon even if it does not fill a block, and fast data is sent in full
// blocks.
func TestSlowPipe(t *testing.T) {
	s, r := newPair(t, statusbyte.Config{Blocks: 4, BlockSize: 1 << 20})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	src := &file{dev: 1, f: in, len: -1}
	defer src.close()
	done := make(chan error, 1)
	go func() {
		_, err := Send(t.Context(), s, []Source{src}, func(int) {})
		done <- errors.Join(err, s.Close())
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, text := range []string{"first", "second part"} {
		if _, err := out.WriteString(text); err != nil {
			t.Fatal(err)
		}
		b, err := r.Receive(ctx) // the pipe is open and silent
		if err != nil || string(b.Data) != text {
			t.Fatalf("received %q, %v, want %q", b.Data, err, text)
		}
		b.Release()
	}
	large := bytes.Repeat([]byte("x"), 3<<20)
	go func() {
		_, err := out.Write(large)
		done <- errors.Join(err, out.Close())
	}()
	n, packets, _ := receiveAll(ctx, t, r)
	if err := errors.Join(<-done, <-done); err != nil {
		t.Error(err)
	}
	if n != len(large) || packets > 100 {
		t.Errorf("%d bytes in %d packets, want %d in at most 100", n, packets, len(large))
	}
}

// OpenFiles rejects a second use of standard input, device numbers above 255 and directories.
func TestSources(t *testing.T) {
	for _, args := range [][]string{{"-", "7=-"}, {"256=a"}} {
		if _, err := OpenFiles(args, 0); cli.Status(err) != cli.StatusUsage {
			t.Errorf("OpenFiles(%q) = %v, want a usage error", args, err)
		}
	}
	if _, err := OpenFiles([]string{t.TempDir()}, 0); cli.Status(err) != cli.StatusFailure {
		t.Errorf("OpenFiles() = %v for a directory, want an error", err)
	}
	if n := frames(10*time.Millisecond, 40*time.Millisecond); n != 1 {
		t.Errorf("frames() = %d for less than a period, want 1", n)
	}
	if n := TotalSize([]Source{&camera{frame: 10, frames: 3}, &file{len: 5}}); n != 35 {
		t.Errorf("TotalSize() = %d, want 35", n)
	}
	if n := TotalSize([]Source{&camera{frame: 10}, &file{len: 5}}); n != -1 {
		t.Errorf("TotalSize() = %d with an unknown size, want -1", n)
	}
}

// Tail with remove follows a receiver that restarts and numbers its files from 0 again.
func TestTailOverRestart(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, fmt.Sprintf("%020d%s", 0, statusbyte.StoreSuffix))
	write := func(text string) {
		part := filepath.Join(dir, "part")
		if err := errors.Join(os.WriteFile(part, []byte(text), 0o600),
			os.Rename(part, name)); err != nil {
			t.Error(err)
		}
	}
	write("before")
	go func() {
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if _, err := os.Stat(name); err != nil {
				break
			}
		}
		write(" after")
		if err := os.WriteFile(filepath.Join(dir, statusbyte.EndMark), nil, 0o600); err != nil {
			t.Error(err)
		}
	}()
	var out bytes.Buffer
	if err := Tail(t.Context(), dir, true, &out, io.Discard); err != nil ||
		out.String() != "before after" {
		t.Errorf("Tail() = %v, wrote %q, want \"before after\"", err, out.String())
	}
}
