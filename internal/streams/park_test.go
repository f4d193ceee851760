package streams

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// stuck is a sender and a Delivery whose directory of device 1 cannot be written: a file has its
// name.
type stuck struct {
	*testing.T
	s     *statusbyte.Sender
	d     *Delivery
	store *statusbyte.Store
	log   bytes.Buffer
}

func newStuck(t *testing.T, blocks int, o Options) *stuck {
	t.Helper()
	x := &stuck{T: t}
	var r *statusbyte.Receiver
	x.s, r = newPair(t, statusbyte.Config{Blocks: blocks, BlockSize: 100})
	var err error
	if x.store, err = statusbyte.OpenStore(t.TempDir(), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(x.store.Dir(1), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Timeout, o.Log = 10*time.Second, &x.log
	x.d = NewDelivery(r, x.store, o)
	return x
}

// unstick makes the directory writable.
func (x *stuck) unstick() error { return os.Remove(x.store.Dir(1)) }

// send sends the packets from to to-1 of each device.
func (x *stuck) send(from, to int, devices ...uint8) error {
	for n := from; n < to; n++ {
		for _, device := range devices {
			if err := x.s.Write(x.Context(), device, []byte{byte(n)}); err != nil {
				return err
			}
		}
	}
	return nil
}

// run calls f, which sends, and receives at the same time.
func (x *stuck) run(f func() error) Report {
	x.Helper()
	done := make(chan error, 1)
	go func() { done <- errors.Join(f(), x.s.Close()) }()
	if err := errors.Join(x.d.Run(x.Context()), <-done); err != nil {
		x.Fatal(err)
	}
	var rep Report
	x.d.Fill(&rep)
	return rep
}

// stored returns the numbers and contents of the files of a device.
func (x *stuck) stored(device uint8) (list []string) {
	x.Helper()
	names, err := filepath.Glob(filepath.Join(x.store.Dir(device), "*"+statusbyte.StoreSuffix))
	if err != nil {
		x.Fatal(err)
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			x.Fatal(err)
		}
		number := strings.TrimLeft(strings.TrimSuffix(filepath.Base(name), statusbyte.StoreSuffix),
			"0")
		list = append(list, fmt.Sprintf("%s:%v", number, text))
	}
	return list
}

// If a directory cannot be written, some packets of its device wait and are stored later, the
// others are counted and leave a gap. The stream of the other device continues.
func TestUnwritableDirectory(t *testing.T) {
	const packets = 5
	x := newStuck(t, 4, Options{})
	rep := x.run(func() error {
		if err := x.send(0, packets, 1, 2); err != nil {
			return err
		}
		time.Sleep(3 * retryInterval)
		if err := x.unstick(); err != nil {
			return err
		}
		time.Sleep(3 * retryInterval)
		return x.send(packets, packets+1, 1)
	})
	one, two := rep.Devices[0], rep.Devices[1]
	if two.Packets != packets || two.Unstored != 0 || len(x.stored(2)) != packets {
		t.Errorf("device 2: %+v, stored %q, want %d packets", two, x.stored(2), packets)
	}
	// Two of four blocks may hold parked packets. The numbers of the files have a gap.
	if want := "[:[0] 1:[1] 3:[5]]"; one.Packets != packets+1 || one.Unstored != packets-2 ||
		fmt.Sprint(x.stored(1)) != want {
		t.Errorf("device 1: %+v, stored %q, want %s", one, x.stored(1), want)
	}
	if err := x.d.Unstored(); !errors.Is(err, statusbyte.ErrStore) ||
		!errors.Is(err, ErrUnstored) || !strings.Contains(err.Error(), "3 of device 1") {
		t.Errorf("Unstored() = %v, want 3 packets of device 1", err)
	}
	lines := strings.Split(strings.TrimSpace(x.log.String()), "\n")
	for i, want := range []string{"its packets wait", "packets from number 2 on are lost",
		"can be written again; 3 packets are missing"} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], "device 1: ") ||
			!strings.Contains(lines[i], want) {
			t.Errorf("line %d of %q: want %q", i, lines, want)
		}
	}
	if len(lines) != 3 {
		t.Errorf("%d lines logged, want 3: %q", len(lines), lines)
	}
}

// Nothing is lost if the directory can be written again in time, even with one block.
func TestBrieflyUnwritableDirectory(t *testing.T) {
	x := newStuck(t, 1, Options{})
	time.AfterFunc(holdTime/10, func() { _ = x.unstick() })
	x.run(func() error { return x.send(0, 10, 1) })
	if err := x.d.Unstored(); err != nil || len(x.stored(1)) != 10 {
		t.Errorf("Unstored() = %v, stored %q, want 10 packets", err, x.stored(1))
	}
}

// With Lossless all devices wait until the directory can be written, and nothing is lost.
func TestLossless(t *testing.T) {
	const packets = 20
	x := newStuck(t, 4, Options{Lossless: true})
	begin := time.Now()
	time.AfterFunc(2*holdTime, func() { _ = x.unstick() })
	rep := x.run(func() error { return x.send(0, packets, 1, 2) })
	if err := x.d.Unstored(); err != nil || len(x.stored(1)) != packets ||
		len(x.stored(2)) != packets || rep.Devices[0].Unstored != 0 {
		t.Errorf("Unstored() = %v, stored %q and %q, want %d packets each", err, x.stored(1),
			x.stored(2), packets)
	}
	if d := time.Since(begin); d < 2*holdTime {
		t.Errorf("the streams ended after %v, before the directory could be written", d)
	}
}

// Packets that wait at the end of the stream are stored if the directory can be written within
// Grace, and counted otherwise. After an interruption there is no wait.
func TestGrace(t *testing.T) {
	t.Run("in time", func(t *testing.T) {
		x := newStuck(t, 4, Options{Grace: 10 * time.Second})
		x.run(func() error {
			time.AfterFunc(3*retryInterval, func() { _ = x.unstick() })
			return x.send(0, 2, 1)
		})
		if err := x.d.Unstored(); err != nil || len(x.stored(1)) != 2 ||
			!strings.Contains(x.log.String(), "2 packets wait for 10s (--grace)") {
			t.Errorf("Unstored() = %v, stored %q, logged %q", err, x.stored(1), x.log.String())
		}
	})
	t.Run("too late", func(t *testing.T) {
		x := newStuck(t, 4, Options{Grace: 2 * retryInterval})
		x.run(func() error { return x.send(0, 2, 1) })
		if err := x.d.Unstored(); !errors.Is(err, ErrUnstored) ||
			!strings.Contains(err.Error(), "2 of device 1") {
			t.Errorf("Unstored() = %v, want 2 packets of device 1", err)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		x := newStuck(t, 4, Options{Grace: time.Hour, Lossless: true})
		ctx, cancel := context.WithCancel(t.Context())
		if err := errors.Join(x.send(0, 4, 1), x.s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(2*retryInterval, cancel)
		done := make(chan error, 1)
		go func() { done <- x.send(4, 10, 1) }() // more than the blocks can hold
		if err := x.d.Run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Run() = %v, want context.Canceled", err)
		}
		if err := <-done; !errors.Is(err, statusbyte.ErrBroken) {
			t.Errorf("the sender got error %v, want ErrBroken", err)
		}
		if one := x.d.all.of(1); one.Unstored < 4 || one.Unstored != one.Packets ||
			!errors.Is(x.d.Unstored(), ErrUnstored) {
			t.Errorf("%+v, Unstored() = %v, want all packets unstored, at least 4",
				one.DeviceReport, x.d.Unstored())
		}
	})
}

// If the end mark cannot be created at first, the data of the last packet is stored only once.
func TestUnwritableEndMark(t *testing.T) {
	x := newStuck(t, 4, Options{Grace: 10 * time.Second})
	if err := errors.Join(x.unstick(), x.store.Open(1),
		os.Mkdir(filepath.Join(x.store.Dir(1), statusbyte.EndMark), 0o700)); err != nil {
		t.Fatal(err)
	}
	x.run(func() error {
		time.AfterFunc(3*retryInterval,
			func() { _ = os.Remove(filepath.Join(x.store.Dir(1), statusbyte.EndMark)) })
		f, err := x.s.Fill(t.Context(), 1)
		if err != nil {
			return err
		}
		f.Data[0] = 7
		return f.Send(t.Context(), 1, true)
	})
	if info, err := os.Stat(filepath.Join(x.store.Dir(1), statusbyte.EndMark)); err != nil ||
		info.IsDir() || fmt.Sprint(x.stored(1)) != "[:[7]]" {
		t.Errorf("end mark: %v, stored %q, want one packet", err, x.stored(1))
	}
	if err := x.d.Unstored(); err != nil {
		t.Error(err)
	}
}

// Tail reports where packets are missing, writes the others and returns ErrGaps.
func TestTailOverGap(t *testing.T) {
	for _, remove := range []bool{false, true} {
		store, err := statusbyte.OpenStore(t.TempDir(), 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"a", "b", "", "d"} {
			if text == "" {
				store.Gap(1)
				continue
			}
			if err := store.Put(1, []byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(store.End(1), store.Close()); err != nil {
			t.Fatal(err)
		}
		var out, diag bytes.Buffer
		err = Tail(t.Context(), store.Dir(1), remove, &out, &diag)
		if !errors.Is(err, ErrGaps) || out.String() != "abd" ||
			strings.Count(diag.String(), "\n") != 1 ||
			!strings.Contains(diag.String(), "0003"+statusbyte.StoreSuffix) {
			t.Errorf("Tail() = %v, wrote %q, reported %q, want ErrGaps, \"abd\" and one line", err,
				out.String(), diag.String())
		}
	}
}
