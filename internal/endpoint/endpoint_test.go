package endpoint

import (
	"strings"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

func newDevice(t *testing.T) *roce.Device {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// With one protection domain at most, an endpoint that leaves something behind blocks the next.
	dev, err := roce.New(link.Port(0), roce.WithExpert(roce.Expert{MaxPD: 1}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return dev
}

func TestNew(t *testing.T) {
	dev := newDevice(t)
	e, err := New(dev, Config{
		QP: roce.QPConfig{SendDepth: 4, RecvDepth: 8}, QPs: 2, RecvCQ: 16, Memory: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(e.QPs) != 2 || e.QP != e.QPs[0] || e.RecvCQ == e.CQ || e.MR.Len() != 100 {
		t.Errorf("New() = %+v", e)
	}
	if _, err := e.AddMR(10, roce.LocalWrite); err != nil {
		t.Error(err)
	}
	if _, err := e.AddQP(); err != nil || len(e.QPs) != 3 {
		t.Errorf("AddQP() = %v, %d QPs", err, len(e.QPs))
	}
	for range 2 {
		if err := e.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}
	e, err = New(dev, Config{})
	if err != nil {
		t.Fatalf("New() after Close() = %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// All queue pairs share the SRQ, and AddQPOfType overrides the type of the template.
func TestSRQAndTypes(t *testing.T) {
	e, err := New(newDevice(t), Config{
		QP: roce.QPConfig{SendDepth: 2}, QPs: 2, SendCQ: 10, SRQ: &roce.SRQConfig{Depth: 4},
	})
	if err != nil {
		t.Fatal(err)
	}
	if e.SRQ == nil {
		t.Fatal("New() created no SRQ")
	}
	if err := e.QPs[1].PostRecv(roce.RecvWR{}); err == nil {
		t.Error("PostRecv() = nil on a queue pair with an SRQ")
	}
	if err := e.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if e, err = New(newDevice(t), Config{QPs: -1}); err != nil {
		t.Fatal(err)
	}
	if q, err := e.AddQPOfType(roce.UC); err != nil || q.Type() != roce.UC {
		t.Errorf("AddQPOfType(UC) = %v, %v", q, err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// An error must leave nothing on the device.
func TestNewFails(t *testing.T) {
	dev := newDevice(t)
	for name, c := range map[string]Config{
		"QP":     {QP: roce.QPConfig{SendDepth: -1}, SendCQ: 1, Memory: 10},
		"memory": {Memory: 1 << 62},
		"CQ":     {SendCQ: 1 << 40},
	} {
		if e, err := New(dev, c); err == nil || e != nil {
			t.Errorf("%s: New() = %v, %v, want an error", name, e, err)
		}
	}
	e, err := New(dev, Config{})
	if err != nil {
		t.Fatalf("New() after a failed New() = %v", err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// The default capacity of the completion queue fits all work requests of all queue pairs.
func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		Config
		send, recv int
	}{
		{Config{}, 256, 0},
		{Config{QPs: 3, QP: roce.QPConfig{SendDepth: 1, RecvDepth: 2}}, 9, 0},
		{Config{QPs: -1, MaxQPs: 2, QP: roce.QPConfig{SendDepth: 5}, RecvCQ: 7}, 10, 7},
		{Config{SendCQ: 4}, 4, 0},
	} {
		if c.setDefaults(); c.SendCQ != c.send || c.Config.RecvCQ != c.recv {
			t.Errorf("capacities %d and %d, want %d and %d", c.SendCQ, c.Config.RecvCQ, c.send,
				c.recv)
		}
	}
}

func TestStatusError(t *testing.T) {
	if err := StatusError(&roce.WC{}); err != nil {
		t.Errorf("StatusError(success) = %v", err)
	}
	err := StatusError(&roce.WC{Status: roce.RetryExcErr})
	if err == nil || !strings.Contains(err.Error(), "4791") ||
		!strings.Contains(err.Error(), "path MTU") {
		t.Errorf("StatusError(RetryExcErr) = %v, want advice about UDP port 4791 and the MTU", err)
	}
	if err := StatusError(&roce.WC{Status: roce.LocLenErr}); err == nil {
		t.Error("StatusError(LocLenErr) = nil")
	}
}
