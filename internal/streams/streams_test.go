package streams

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// newPair connects a sender and a receiver on a memory link.
func newPair(t *testing.T, cfg statusbyte.Config) (*statusbyte.Sender, *statusbyte.Receiver) {
	t.Helper()
	bed, err := testbed.New(testbed.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = bed.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	t.Cleanup(cancel)
	l, err := statusbyte.Listen(bed.Dev[1], bed.Addr(1, 7480), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var r *statusbyte.Receiver
	accepted := make(chan error, 1)
	go func() {
		var err error
		r, err = l.Accept(ctx)
		accepted <- err
	}()
	s, err := statusbyte.Init(ctx, bed.Dev[0], l.Addr(), statusbyte.Config{})
	if err := errors.Join(err, <-accepted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _, _ = s.Close(), r.Close(), l.Close() })
	return s, r
}

// The hashes of files and cameras are the same on both sides, and Tail returns the content of a
// file.
func TestStreams(t *testing.T) {
	s, r := newPair(t, statusbyte.Config{Blocks: 4, BlockSize: 1000})
	dir := t.TempDir()
	content := bytes.Repeat([]byte("0123456789abcdefghijk"), 500)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := OpenFiles([]string{"9=" + file}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		list = append(list, &camera{dev: uint8(i), frame: 2500, period: time.Millisecond,
			frames: 10})
	}
	store, err := statusbyte.OpenStore(filepath.Join(dir, "data"), 0)
	if err != nil {
		t.Fatal(err)
	}
	d := NewDelivery(r, store, Options{Timeout: 5 * time.Second})
	sent := make(chan []DeviceReport, 1)
	go func() {
		all, err := Send(t.Context(), s, list, func(int) {})
		if err := errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
		sent <- all
	}()
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var rep Report
	d.Fill(&rep)
	if a, b := fmt.Sprint(<-sent), fmt.Sprint(rep.Devices); a != b {
		t.Errorf("sent\n%s\nreceived\n%s", a, b)
	}
	sum := sha256.Sum256(content)
	if got := rep.Devices[3]; got.Device != 9 || got.SHA256 != hex.EncodeToString(sum[:]) ||
		got.Packets != 11 || rep.Devices[0].Packets != 30 {
		t.Errorf("Devices = %+v, want 30 packets of device 0 and 11 of device 9 with hash %x",
			rep.Devices, sum)
	}
	var out bytes.Buffer
	if err := Tail(t.Context(), store.Dir(9), true, &out, io.Discard); err != nil ||
		!bytes.Equal(out.Bytes(), content) {
		t.Errorf("Tail() = %v and %d bytes, want the %d bytes of the file", err, out.Len(),
			len(content))
	}
	if left, _ := filepath.Glob(filepath.Join(store.Dir(9), "*"+
		statusbyte.StoreSuffix)); left != nil {
		t.Errorf("Tail() left %v", left)
	}
}

func TestTimeout(t *testing.T) {
	_, r := newPair(t, statusbyte.Config{Blocks: 2, BlockSize: 100})
	d := NewDelivery(r, nil, Options{Timeout: 30 * time.Millisecond})
	if err := d.Run(t.Context()); !errors.Is(err, ErrTimeout) {
		t.Errorf("Run() = %v with a silent sender, want ErrTimeout", err)
	}
}
