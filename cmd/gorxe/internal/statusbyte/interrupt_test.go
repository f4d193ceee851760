package statusbyte

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

// "Nothing accepted is lost": a receiver that is interrupted takes what its NIC has acknowledged.
func TestInterruptedReceiver(t *testing.T) {
	s, r := rig(t, statusbyte.Config{Blocks: 8, BlockSize: 100})
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
	d := newDelivery(r, nil, options{timeout: 5 * time.Second})
	if err := d.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	var rep report
	if d.fill(&rep); len(rep.Devices) != 1 || rep.Devices[0].Packets != packets {
		t.Errorf("%+v", rep.Devices)
	}
	if err := errors.Join(s.Write(t.Context(), 3, nil), s.Flush(t.Context())); !errors.Is(err, statusbyte.ErrBroken) {
		t.Errorf("the sender hears nothing of it: %v", err)
	}
}

// A pipe that is silent does not keep an interrupted sender from ending, and what was read of it arrives.
func TestInterruptedPipe(t *testing.T) {
	s, r := rig(t, statusbyte.Config{Blocks: 2, BlockSize: 100})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	src := &fileSource{dev: 1, file: in, len: -1}
	defer src.close()
	if _, err := out.WriteString("said"); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(100*time.Millisecond, cancel)
	sent := make(chan string, 1)
	go func() {
		all, err := sendAll(ctx, s, []source{src}, func(int) {})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
		sent <- fmt.Sprint(all.reports())
	}()
	d := newDelivery(r, nil, options{timeout: 5 * time.Second})
	if err := d.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rep report
	d.fill(&rep)
	if a := <-sent; a != fmt.Sprint(rep.Devices) || rep.Devices[0].Bytes != 4 {
		t.Errorf("sent %s, received %v", a, rep.Devices)
	}
}

// An interruption cuts a file off: that is told, and its stream has no end. A camera ends its stream with a whole frame, even if it
// waits for room at that moment, and even if it was to run for longer.
func TestInterruptedWhileItWaits(t *testing.T) {
	for _, c := range []struct {
		name string
		src  func(t *testing.T) source
		want error
	}{
		{"file", func(t *testing.T) source {
			name := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(name, make([]byte, 1000), 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := openFiles([]string{name}, 0)
			if err != nil {
				t.Fatal(err)
			}
			return list[0]
		}, context.Canceled},
		{"camera", func(*testing.T) source { return &camera{frame: 400, period: time.Hour, frames: 10} }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, r := rig(t, statusbyte.Config{Blocks: 2, BlockSize: 100})
			src := c.src(t)
			defer src.close()
			ctx, cancel := context.WithCancel(t.Context())
			done, packets := make(chan error, 1), make(chan int, 10)
			go func() {
				_, err := sendAll(ctx, s, []source{src}, func(n int) { packets <- n })
				done <- err
			}()
			<-packets
			<-packets
			time.Sleep(20 * time.Millisecond) // the third one waits for room
			cancel()
			n, last := 0, false
			ended := make(chan error, 1)
			go func() { ended <- errors.Join(<-done, s.Close()) }()
			wait, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			for {
				b, err := r.Receive(wait)
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				n, last = n+len(b.Data), b.Last
				b.Release()
			}
			if err := <-ended; !errors.Is(err, c.want) {
				t.Errorf("%v; want %v", err, c.want)
			}
			if whole := c.want == nil; last != whole || whole && n != 400 {
				t.Errorf("%d bytes, the end %v", n, last)
			}
		})
	}
}

// What a pipe has said is not kept back while it says nothing more, however large blocks are; and what comes quickly goes in whole blocks.
func TestSlowPipe(t *testing.T) {
	s, r := rig(t, statusbyte.Config{Blocks: 4, BlockSize: 1 << 20})
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	src := &fileSource{dev: 1, file: in, len: -1}
	defer src.close()
	done := make(chan error, 1)
	go func() {
		_, err := sendAll(t.Context(), s, []source{src}, func(int) {})
		done <- errors.Join(err, s.Close())
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for _, text := range []string{"said", "and said again"} {
		if _, err := out.WriteString(text); err != nil {
			t.Fatal(err)
		}
		b, err := r.Receive(ctx) // the pipe is open and silent
		if err != nil || string(b.Data) != text {
			t.Fatalf("%q, %v", b.Data, err)
		}
		b.Release()
	}
	large := bytes.Repeat([]byte("x"), 3<<20)
	go func() {
		_, err := out.Write(large)
		done <- errors.Join(err, out.Close())
	}()
	n, packets := 0, 0
	for {
		b, err := r.Receive(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n, packets = n+len(b.Data), packets+1
		b.Release()
	}
	if err := errors.Join(<-done, <-done); err != nil {
		t.Error(err)
	}
	if n != len(large) || packets > 100 {
		t.Errorf("%d bytes in %d packets", n, packets)
	}
}

// Standard input is one stream, device numbers end at 255, a directory is no stream; each is told before anything is sent.
func TestSources(t *testing.T) {
	for _, args := range [][]string{{"-", "7=-"}, {"256=a"}} {
		if _, err := openFiles(args, 0); cli.Status(err) != cli.StatusUsage {
			t.Errorf("%q: %v; want a usage error", args, err)
		}
	}
	if _, err := openFiles([]string{t.TempDir()}, 0); cli.Status(err) != cli.StatusFailure {
		t.Errorf("a directory: %v", err)
	}
	if n := frames(10*time.Millisecond, 40*time.Millisecond); n != 1 {
		t.Errorf("a camera that runs for less than a frame's time has %d frames", n)
	}
	if n := total([]source{&camera{frame: 10, frames: 3}, &fileSource{len: 5}}); n != 35 {
		t.Errorf("%d bytes in all", n)
	}
	if n := total([]source{&camera{frame: 10}, &fileSource{len: 5}}); n != -1 {
		t.Errorf("%d bytes in all, where nobody knows", n)
	}
}

// A receiver that begins anew in a directory that its consumer has emptied is followed all the same.
func TestTailOverARestart(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, fmt.Sprintf("%020d%s", 0, statusbyte.StoreSuffix))
	write := func(text string) {
		part := filepath.Join(dir, "part")
		if err := errors.Join(os.WriteFile(part, []byte(text), 0o600), os.Rename(part, name)); err != nil {
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
	if err := tail(t.Context(), dir, true, &out, io.Discard); err != nil || out.String() != "before after" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
