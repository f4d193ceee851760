package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
)

// statusByteRecv runs "statusbyte recv" on A and "statusbyte send" on B. It repeats send until
// recv listens, and returns both results.
func statusByteRecv(t *testing.T, pair *veth.Pair, recv, send []string) (sent, received *result) {
	t.Helper()
	p := start(t, &pair.A, append([]string{"statusbyte", "recv", "-d", pair.A.Iface}, recv...)...)
	eventually(t, "statusbyte recv attaches to the interface",
		func() bool { return attached(t, ns(&pair.A)) == 1 })
	eventually(t, "statusbyte recv answers statusbyte send", func() bool {
		sent = run(t, &pair.B,
			append([]string{"statusbyte", "send", pair.A.IPv4.Addr().String()}, send...)...)
		select {
		case <-p.ended:
			return true
		default:
			return sent.status == 0
		}
	})
	return sent, p.wait()
}

// Two files and, in another run, three cameras: the reports of both sides agree, and tail writes
// the content of a file.
func TestStatusByte(t *testing.T) {
	pair := needRoot(t, veth.Options{MTU: 4200})
	dir := t.TempDir()
	content := bytes.Repeat([]byte("what a camera sees "), 100_000)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	sent, received := statusByteRecv(t, pair,
		[]string{"--json", "--dir", filepath.Join(dir, "data"), "--block-size", "100000",
			"--segment", "1m"},
		[]string{"--json", file, "200=" + file})
	a, b := sent.ok().json()[0]["devices"].([]any), received.ok().json()[0]["devices"].([]any)
	sum := sha256.Sum256(content)
	for i, device := range []float64{0, 200} {
		s, r := a[i].(map[string]any), b[i].(map[string]any)
		fields(t, r, "device", "packets", "bytes", "gaps", "duplicates", "sha256")
		if r["device"] != device || r["packets"] != 19.0 || r["bytes"] != 1.9e6 ||
			r["gaps"] != 0.0 || r["duplicates"] != 0.0 ||
			r["sha256"] != hex.EncodeToString(sum[:]) || r["sha256"] != s["sha256"] {
			t.Errorf("sent %v, received %v", s, r)
		}
	}
	if got := run(t, nil, "statusbyte", "tail",
		filepath.Join(dir, "data", "device-200")).ok(); got.stdout != string(content) {
		t.Errorf("tail wrote %d bytes, want the content of the file", len(got.stdout))
	}

	sent, received = statusByteRecv(t, pair,
		[]string{"--json", "--blocks", "3", "--devices", "5-7"},
		[]string{"--json", "--cameras", "3", "--device", "5", "--fps", "100", "--duration", "0.2"})
	a, b = sent.ok().json()[0]["devices"].([]any), received.ok().json()[0]["devices"].([]any)
	for i := range 3 {
		s, r := a[i].(map[string]any), b[i].(map[string]any)
		if r["packets"] != 20.0 || r["sha256"] != s["sha256"] {
			t.Errorf("camera %d: sent %v, received %v", i, s, r)
		}
	}
}

// If the number of blocks differs, the sender fails with one line that has both numbers. The
// receiver prints that too, and serves the next sender.
func TestStatusByteMismatch(t *testing.T) {
	pair := needRoot(t, veth.Options{})
	p := start(t, &pair.A, "statusbyte", "recv", "-d", pair.A.Iface, "--blocks", "3")
	send := []string{"statusbyte", "send", pair.A.IPv4.Addr().String(), "--cameras", "1",
		"--duration", "0.1", "--blocks"}
	var sent *result
	eventually(t, "statusbyte recv refuses a sender", func() bool {
		sent = run(t, &pair.B, append(send, "4")...)
		return strings.Contains(sent.err, "different sizes")
	})
	sent.fails(1, "3 blocks", "4 blocks")
	run(t, &pair.B, append(send, "3")...).ok()
	received := p.wait().ok()
	if !strings.Contains(received.err, "was refused") ||
		!strings.Contains(received.err, "3 blocks") ||
		!strings.Contains(received.err, "4 blocks") {
		t.Errorf("recv printed %q, want the blocks of both sides", received.err)
	}
}

// An unusable directory is an error before a sender connects.
func TestStatusByteDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, nil, "statusbyte", "recv", "-d", "lo", "--dir", filepath.Join(file, "data")).fails(1,
		"cannot store", "choose another directory")
}
