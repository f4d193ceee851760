package lab

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"
	"github.com/vishvananda/netlink"
)

// newEmpty creates a lab without guests.
func newEmpty(t *testing.T) *Lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	l := &Lab{opts: Options{MTU: MaxMTU}}
	t.Cleanup(l.Close)
	if err := l.build(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

func carrier(t *testing.T, l *Lab) bool {
	t.Helper()
	var up bool
	if err := l.Host.Do(func() error {
		link, err := netlink.LinkByName(l.Iface())
		if err == nil {
			up = link.Attrs().OperState == netlink.OperUp
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return up
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s does not happen", what)
		}
	}
}

// Two concurrent labs have the same names and addresses and do not reach each other.
func TestLabsAreIsolated(t *testing.T) {
	a, b := newEmpty(t), newEmpty(t)
	if a.Host.Fd() == b.Host.Fd() || a.HostAddr(false) != netip.MustParseAddr("10.77.0.100") ||
		a.HostAddr(true) != netip.MustParseAddr("fd77::64") {
		t.Errorf("%v %v", a.HostAddr(false), a.HostAddr(true))
	}
	for _, l := range []*Lab{a, b} {
		if err := l.Host.Do(func() error {
			ifs, err := net.Interfaces()
			if err == nil && (len(ifs) != 2 || ifs[1].Name != l.Iface() || ifs[1].MTU != MaxMTU) {
				t.Errorf("interfaces: %+v", ifs)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCable(t *testing.T) {
	l := newEmpty(t)
	await(t, "carrier", func() bool { return carrier(t, l) })
	for _, up := range []bool{false, true} {
		if err := l.Cable(up); err != nil {
			t.Fatal(err)
		}
		await(t, "carrier change", func() bool { return carrier(t, l) == up })
	}
}

func TestRecorder(t *testing.T) {
	l := newEmpty(t)
	await(t, "carrier", func() bool { return carrier(t, l) })
	l.Recorder.Reset()
	if err := l.Host.Do(func() error { // the address is looked up
		c, err := net.Dial("udp", "10.77.0.77:9")
		if err == nil {
			_, err = c.Write([]byte("who has .77?"))
			c.Close()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	await(t, "a frame in the record", func() bool {
		b.Reset()
		n, err := l.SavePCAP(&b)
		return err == nil && n > 0
	})
	r, err := pcapgo.NewReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	data, ci, err := r.ReadPacketData()
	if err != nil || len(data) < 14 || time.Since(ci.Timestamp) > time.Minute {
		t.Errorf("%d bytes, %v, %v", len(data), ci.Timestamp, err)
	}
}

// The record is bounded: the oldest frames are dropped first.
func TestRecorderForgets(t *testing.T) {
	r := &Recorder{}
	frame := make([]byte, 60_000)
	for i := range 3 * recorderBytes / len(frame) {
		frame[0] = byte(i)
		r.keep(time.Unix(int64(i), 0), frame)
	}
	if r.bytes > recorderBytes || r.dropped == 0 {
		t.Errorf("%d bytes kept, %d frames dropped", r.bytes, r.dropped)
	}
	total := 0
	for _, f := range r.frames[r.first:] {
		total += len(f.data)
	}
	if total != r.bytes || len(r.frames) > 3*recorderBytes/len(frame) {
		t.Errorf("%d bytes are there, %d are counted, in %d places", total, r.bytes, len(r.frames))
	}
}

// Programs started in a namespace end with it.
func TestCommandsEndWithTheNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	n, err := NewNS()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "1000")
	if err := n.Start(cmd); err != nil {
		t.Fatal(err)
	}
	n.Close()
	n.Close()
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		_ = cmd.Process.Kill()
		t.Error("it lives on")
	}
}
