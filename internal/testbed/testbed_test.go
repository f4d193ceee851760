package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
)

func newTestbed(t *testing.T, c Config) *Testbed {
	t.Helper()
	bed, err := New(c)
	if Unavailable(err) {
		t.Skipf("no AF_XDP on a veth pair here (needs root): %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bed.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return bed
}

// pair creates a connected endpoint on each device.
func pair(t *testing.T, bed *Testbed, c endpoint.Config) (ends [2]*endpoint.Endpoint) {
	t.Helper()
	for i, d := range bed.Dev {
		e, err := endpoint.New(d, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
		ends[i] = e
	}
	err := endpoint.Connect(t.Context(), ends[0], ends[1], roce.ConnectOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ends
}

const text = "one message from device 0 to device 1"

func writeWR(e [2]*endpoint.Endpoint) roce.SendWR {
	copy(e[0].MR.Bytes(), text)
	remote := e[1].MR.Remote()
	return roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled, SGEs: []roce.SGE{e[0].MR.SGE(0, len(text))},
		RemoteAddr: remote.Addr, RKey: remote.RKey,
	}
}

func TestRealTime(t *testing.T) {
	for name, c := range map[string]Config{
		"memory":    {},
		"lossy":     {Plan: loopback.Plan{Loss: 0.2}, Seed: 7},
		"Veth":      {Veth: true},
		"VethLossy": {Veth: true, Plan: loopback.Plan{Loss: 0.2}, Seed: 7},
	} {
		t.Run(name, func(t *testing.T) {
			bed := newTestbed(t, c)
			e := pair(t, bed, endpoint.Config{Memory: 4096})
			if err := e[0].QP.PostSend(writeWR(e)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var wcs [1]roce.WC
			if _, err := e[0].CQ.Wait(ctx, wcs[:]); err != nil {
				t.Fatal(err)
			}
			if err := endpoint.StatusError(&wcs[0]); err != nil {
				t.Fatal(err)
			}
			if got := e[1].MR.Bytes()[:len(text)]; !bytes.Equal(got, []byte(text)) {
				t.Errorf("the peer's memory holds %q, want %q", got, text)
			}
		})
	}
}

func TestVirtualTime(t *testing.T) {
	bed := newTestbed(t, Config{Virtual: true, Plan: loopback.Plan{Delay: time.Second}})
	e := pair(t, bed, endpoint.Config{Memory: 4096, QP: roce.QPConfig{Type: roce.RC}})
	start := bed.Link.Now()
	if err := e[0].QP.PostSend(writeWR(e)); err != nil {
		t.Fatal(err)
	}
	done := func() bool { return e[0].CQ.Len() > 0 }
	if err := bed.Run(time.Millisecond, done); !errors.Is(err, ErrTimeout) {
		t.Errorf("Run(1ms) = %v, want ErrTimeout", err)
	}
	if err := bed.Run(time.Minute, done); err != nil {
		t.Fatal(err)
	}
	if took := time.Duration(bed.Link.Now() - start); took < 2*time.Second {
		t.Errorf("a WRITE took %v of virtual time on a link with 2s round trips", took)
	}
}

func TestStuck(t *testing.T) {
	bed := newTestbed(t, Config{Virtual: true})
	never := func() bool { return false }
	if err := bed.Run(time.Hour, never); !errors.Is(err, ErrStuck) {
		t.Errorf("Run() = %v on idle devices, want ErrStuck", err)
	}
}

// A device option that New refuses must leave no port, namespace or interface behind.
func TestNewFails(t *testing.T) {
	if _, err := New(Config{MTU: loopback.MinMTU}); !errors.Is(err, roce.ErrMTU) {
		t.Errorf("New() with MTU %d = %v, want ErrMTU", loopback.MinMTU, err)
	}
	if _, err := New(Config{MTU: 1}); !errors.Is(err, loopback.ErrConfig) {
		t.Errorf("New() with MTU 1 = %v, want ErrConfig", err)
	}
}

func TestWrap(t *testing.T) {
	var sides []int
	newTestbed(t, Config{Wrap: func(side int, p driver.Port) driver.Port {
		sides = append(sides, side)
		return p
	}})
	if !slices.Equal(sides, []int{0, 1}) {
		t.Errorf("Wrap was called for sides %v, want [0 1]", sides)
	}
}

func TestUnavailable(t *testing.T) {
	if !Unavailable(fmt.Errorf("open: %w", xdp.ErrUnsupported)) {
		t.Error("Unavailable(ErrUnsupported) = false")
	}
	if Unavailable(nil) || Unavailable(errors.New("other")) {
		t.Error("Unavailable() = true for an error that does not concern AF_XDP")
	}
}
