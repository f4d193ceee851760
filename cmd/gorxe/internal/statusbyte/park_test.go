package statusbyte

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

// stuck is a rig whose directory of device 1 takes nothing: a file is in its place.
type stuck struct {
	*testing.T
	s     *statusbyte.Sender
	d     *delivery
	store *statusbyte.Store
	said  bytes.Buffer
}

func newStuck(t *testing.T, blocks int, o options) *stuck {
	t.Helper()
	x := &stuck{T: t}
	var r *statusbyte.Receiver
	x.s, r = rig(t, statusbyte.Config{Blocks: blocks, BlockSize: 100})
	var err error
	if x.store, err = statusbyte.OpenStore(t.TempDir(), 0); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(x.store.Dir(1), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.timeout, o.diag = 10*time.Second, &x.said
	x.d = newDelivery(r, x.store, o)
	return x
}

// unstick lets the directory take packets.
func (x *stuck) unstick() error { return os.Remove(x.store.Dir(1)) }

// send sends packets "from" to "to"-1 of some devices.
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

// run receives while f sends.
func (x *stuck) run(f func() error) report {
	x.Helper()
	done := make(chan error, 1)
	go func() { done <- errors.Join(f(), x.s.Close()) }()
	if err := errors.Join(x.d.run(x.Context()), <-done); err != nil {
		x.Fatal(err)
	}
	var rep report
	x.d.fill(&rep)
	return rep
}

// stored is what a consumer finds: numbers of files and their first bytes.
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
		number := strings.TrimLeft(strings.TrimSuffix(filepath.Base(name), statusbyte.StoreSuffix), "0")
		list = append(list, fmt.Sprintf("%s:%v", number, text))
	}
	return list
}

// "A receiver directory that is full or read-only": that device's packets wait, as many as there is room for, and are stored
// when it takes them again; what is beyond is counted, and leaves a gap; the other device's stream goes on all the while.
func TestDirectoryThatTakesNothing(t *testing.T) {
	const packets = 5
	x := newStuck(t, 4, options{})
	rep := x.run(func() error {
		if err := x.send(0, packets, 1, 2); err != nil {
			return err
		}
		time.Sleep(3 * retryEvery)
		if err := x.unstick(); err != nil {
			return err
		}
		time.Sleep(3 * retryEvery)
		return x.send(packets, packets+1, 1)
	})
	one, two := rep.Devices[0], rep.Devices[1]
	if two.Packets != packets || two.Lost != 0 || len(x.stored(2)) != packets {
		t.Errorf("device 2: %+v, stored %q", two, x.stored(2))
	}
	// Two of four blocks may be parked; the numbers of files tell what is missing.
	if want := "[:[0] 1:[1] 3:[5]]"; one.Packets != packets+1 || one.Lost != packets-2 || fmt.Sprint(x.stored(1)) != want {
		t.Errorf("device 1: %+v, stored %q, want %s", one, x.stored(1), want)
	}
	if err := x.d.unstored(); !errors.Is(err, statusbyte.ErrStore) || !errors.Is(err, errUnstored) || !strings.Contains(err.Error(), "3 of device 1") {
		t.Errorf("%v", err)
	}
	lines := strings.Split(strings.TrimSpace(x.said.String()), "\n")
	for i, want := range []string{"its packets wait", "from packet 2 on its packets are lost", "stored again; 3 packets are missing"} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], "device 1: ") || !strings.Contains(lines[i], want) {
			t.Errorf("line %d of %q does not say %q", i, lines, want)
		}
	}
	if len(lines) != 3 {
		t.Errorf("%q", lines)
	}
}

// A consumer that makes room in time loses nothing, however little room there is.
func TestDirectoryThatIsFullForAWhile(t *testing.T) {
	x := newStuck(t, 1, options{})
	time.AfterFunc(holdFor/10, func() { _ = x.unstick() })
	x.run(func() error { return x.send(0, 10, 1) })
	if err := x.d.unstored(); err != nil || len(x.stored(1)) != 10 {
		t.Errorf("%v, stored %q", err, x.stored(1))
	}
}

// With --lossless everything waits, longer than it would otherwise, and nothing is lost; the other device's stream comes whole, later.
func TestLossless(t *testing.T) {
	const packets = 20
	x := newStuck(t, 4, options{lossless: true})
	begin := time.Now()
	time.AfterFunc(2*holdFor, func() { _ = x.unstick() })
	rep := x.run(func() error { return x.send(0, packets, 1, 2) })
	if err := x.d.unstored(); err != nil || len(x.stored(1)) != packets || len(x.stored(2)) != packets || rep.Devices[0].Lost != 0 {
		t.Errorf("%v, stored %q and %q", err, x.stored(1), x.stored(2))
	}
	if d := time.Since(begin); d < 2*holdFor {
		t.Errorf("the stream was over after %v, before the directory took it", d)
	}
}

// What waits when the stream ends is stored if its directory takes it within --grace, or counted after it. An interruption
// does not wait.
func TestGrace(t *testing.T) {
	t.Run("in time", func(t *testing.T) {
		x := newStuck(t, 4, options{grace: 10 * time.Second})
		x.run(func() error {
			time.AfterFunc(3*retryEvery, func() { _ = x.unstick() })
			return x.send(0, 2, 1)
		})
		if err := x.d.unstored(); err != nil || len(x.stored(1)) != 2 || !strings.Contains(x.said.String(), "2 wait for 10s (--grace)") {
			t.Errorf("%v, stored %q, said %q", err, x.stored(1), x.said.String())
		}
	})
	t.Run("too late", func(t *testing.T) {
		x := newStuck(t, 4, options{grace: 2 * retryEvery})
		x.run(func() error { return x.send(0, 2, 1) })
		if err := x.d.unstored(); !errors.Is(err, errUnstored) || !strings.Contains(err.Error(), "2 of device 1") {
			t.Errorf("%v", err)
		}
	})
	t.Run("interrupted", func(t *testing.T) {
		x := newStuck(t, 4, options{grace: time.Hour, lossless: true})
		ctx, cancel := context.WithCancel(t.Context())
		if err := errors.Join(x.send(0, 4, 1), x.s.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(2*retryEvery, cancel)
		done := make(chan error, 1)
		go func() { done <- x.send(4, 10, 1) }() // more than there is room for
		if err := x.d.run(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		if err := <-done; !errors.Is(err, statusbyte.ErrBroken) {
			t.Errorf("the sender hears nothing of it: %v", err)
		}
		if one := x.d.all.of(1); one.Lost < 4 || one.Lost != one.Packets || !errors.Is(x.d.unstored(), errUnstored) {
			t.Errorf("%+v, %v", one.deviceReport, x.d.unstored())
		}
	})
}

// The end of a stream that cannot be marked does not make its last packet's data appear twice.
func TestEndThatCannotBeMarked(t *testing.T) {
	x := newStuck(t, 4, options{grace: 10 * time.Second})
	if err := errors.Join(x.unstick(), x.store.Open(1), os.Mkdir(filepath.Join(x.store.Dir(1), statusbyte.EndMark), 0o700)); err != nil {
		t.Fatal(err)
	}
	x.run(func() error {
		time.AfterFunc(3*retryEvery, func() { _ = os.Remove(filepath.Join(x.store.Dir(1), statusbyte.EndMark)) })
		f, err := x.s.Fill(t.Context(), 1)
		if err != nil {
			return err
		}
		f.Data[0] = 7
		return f.Send(t.Context(), 1, true)
	})
	if info, err := os.Stat(filepath.Join(x.store.Dir(1), statusbyte.EndMark)); err != nil || info.IsDir() || fmt.Sprint(x.stored(1)) != "[:[7]]" {
		t.Errorf("%v, stored %q", err, x.stored(1))
	}
	if err := x.d.unstored(); err != nil {
		t.Error(err)
	}
}

// tail says where packets are missing, gives what there is, and fails in the end.
func TestTailOverAGap(t *testing.T) {
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
		err = tail(t.Context(), store.Dir(1), remove, &out, &diag)
		if !errors.Is(err, errHoles) || out.String() != "abd" || strings.Count(diag.String(), "\n") != 1 || !strings.Contains(diag.String(), "0003"+statusbyte.StoreSuffix) {
			t.Errorf("%v, %q, %q", err, out.String(), diag.String())
		}
	}
}
