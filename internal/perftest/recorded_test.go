package perftest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// line is one message of a recording: from the client ('>') or the server ('<').
type line struct {
	from byte
	msg  []byte
}

// recorded reads testdata/name.txt without done messages.
func recorded(t *testing.T, name string) []line {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var lines []line
	for s := bufio.NewScanner(f); s.Scan(); {
		if strings.HasPrefix(s.Text(), "#") {
			continue
		}
		msg, err := strconv.Unquote(s.Text()[2:])
		if err != nil {
			t.Fatalf("%s: %q: %v", name, s.Text(), err)
		}
		if msg = strings.TrimSuffix(msg, done); msg != "" {
			lines = append(lines, line{s.Text()[0], []byte(msg)})
		}
	}
	return lines
}

func recordings(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 20 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".txt")
	}
	return files
}

// testOf returns the test and the number of runs of a recording by its name, such as
// 6.06_write_bw_b_q2.
func testOf(name string) (test Test, runs int) {
	parts := strings.Split(name, "_")
	test.Verb = map[string]Verb{"write": Write, "read": Read, "send": Send,
		"atomic": Atomic}[parts[1]]
	test.Latency = parts[2] == "lat"
	runs = 1
	for _, p := range parts[3:] {
		switch p {
		case "a":
			test.All, runs = true, 23
		case "b":
			test.Bidirectional = true
		case "D":
			test.Duration = true
		}
	}
	return test, runs
}

// keysOf returns the keys of one side in the order of their first appearance.
func keysOf(t *testing.T, lines []line, from byte) []Key {
	t.Helper()
	var keys []Key
	seen := map[roce.QPN]bool{}
	for _, l := range lines {
		if l.from != from || len(l.msg) != keyLen {
			continue
		}
		if err := plausibleKey(l.msg); err != nil {
			t.Fatal(err)
		}
		k, err := parseKey(l.msg)
		if err != nil {
			t.Fatal(err)
		}
		if !seen[k.QPN] {
			keys = append(keys, k)
		}
		seen[k.QPN] = true
	}
	return keys
}

// reportOf returns the first report of one side.
func reportOf(lines []line, from byte) *Report {
	var values [reportValues]uint64
	n := 0
	for _, l := range lines {
		if l.from == from && len(l.msg) == valueLen && n < reportValues {
			values[n] = binary.BigEndian.Uint64(l.msg)
			n++
		}
	}
	r := new(Report)
	r.read(values)
	return r
}

// play sends the messages of one side of a recording and compares those of the other side, except
// the version. It then waits for the other side to close the stream.
func play(nc net.Conn, lines []line, as byte) error {
	defer nc.Close()
	if err := exchangeLines(nc, lines, as); err != nil {
		return err
	}
	if n, err := nc.Read(make([]byte, 1)); n > 0 || !errors.Is(err, io.EOF) {
		return fmt.Errorf("after the end: %d bytes, %w", n, err)
	}
	return nil
}

func exchangeLines(nc net.Conn, lines []line, as byte) error {
	for i, l := range lines {
		if l.from == as {
			if _, err := nc.Write(l.msg); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
			continue
		}
		got := make([]byte, len(l.msg))
		if n, err := io.ReadFull(nc, got); err != nil {
			return fmt.Errorf("message %d: got %q instead of %q: %w", i, got[:n], l.msg, err)
		}
		want := l.msg
		if len(want) == versionLen {
			want = hello(as == '<') // a gorxe client sends the mark, a gorxe server only answers it
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("message %d: got %q instead of %q", i, got, want)
		}
	}
	return nil
}

func pipe(t *testing.T) (local *Link, remote net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	deadline := time.Now().Add(20 * time.Second)
	_ = b.SetDeadline(deadline)
	return NewLink(a), b
}

// Client sends the same bytes as the recorded perftest client.
func TestClientAsRecorded(t *testing.T) {
	for _, name := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			lines := recorded(t, name)
			l, server := pipe(t)
			played := make(chan error, 1)
			go func() { played <- play(server, lines, '<') }()
			test, runs := testOf(name)
			err := talkAsClient(t.Context(), l, test, runs, keysOf(t, lines, '>'),
				keysOf(t, lines, '<'), reportOf(lines, '>'))
			l.Close()
			if err != nil {
				t.Error(err)
			}
			if err := <-played; err != nil {
				t.Error(err)
			}
		})
	}
}

func talkAsClient(ctx context.Context, l *Link, test Test, runs int, own, want []Key,
	report *Report) error {
	c, err := Greet(ctx, l, true)
	if err != nil {
		return err
	}
	if c.Peer.Gorxe {
		return errors.New("Peer.Gorxe = true for a perftest peer")
	}
	if mtu, err := c.AgreeMTU(ctx, 4096); err != nil || mtu != 4096 {
		return fmt.Errorf("MTU %d, %w", mtu, err)
	}
	peer, err := c.ExchangeKeys(ctx, test, own)
	if err != nil {
		return err
	}
	for i := range peer {
		if peer[i] != want[i] {
			return fmt.Errorf("key %d: %+v instead of %+v", i, peer[i], want[i])
		}
	}
	if err := c.Start(ctx); err != nil {
		return err
	}
	for range runs {
		if err := c.BeforeRun(ctx); err != nil {
			return err
		}
		r, err := c.AfterRun(ctx, report)
		if err != nil {
			return err
		}
		if r != nil && (r.Check() != nil || r.Iterations == 0 || r.Average == 0) {
			return fmt.Errorf("the server's report is %+v", r)
		}
	}
	return c.End(ctx, report)
}

// recordedHost returns the keys and the report of the recorded server.
type recordedHost struct {
	keys     []Key
	peers    []Key
	syncs    int
	blanks   int
	report   *Report
	reported []Report
}

func (h *recordedHost) QueuePair(_ context.Context, k Key) (Key, error) {
	h.peers = append(h.peers, k)
	return h.keys[len(h.peers)-1], nil
}
func (h *recordedHost) BlankKey() error   { h.blanks++; return nil }
func (h *recordedHost) Sync() error       { h.syncs++; return nil }
func (h *recordedHost) Report() Report    { return *h.report }
func (h *recordedHost) Reported(r Report) { h.reported = append(h.reported, r) }

// Server sends the same bytes as the recorded perftest server, without knowing the test or the
// number of queue pairs.
func TestServerAsRecorded(t *testing.T) {
	for _, name := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			lines := recorded(t, name)
			l, client := pipe(t)
			played := make(chan error, 1)
			go func() { played <- playClient(client, lines) }()
			h := &recordedHost{keys: keysOf(t, lines, '<'), report: reportOf(lines, '<')}
			s, err := AnswerHello(t.Context(), l)
			if err != nil {
				t.Fatal(err)
			}
			if want, _, _ := strings.Cut(name, "_"); s.Peer != (Hello{Version: want}) {
				t.Errorf("Peer = %+v, want version %q", s.Peer, want)
			}
			if mtu, err := s.AgreeMTU(t.Context(), 4096); err != nil || mtu != 4096 ||
				s.Cycle() != 4096 {
				t.Errorf("MTU %d, cycle %d, %v", mtu, s.Cycle(), err)
			}
			if err := s.Serve(t.Context(), h); err != nil {
				t.Error(err)
			}
			if err := <-played; err != nil {
				t.Error(err)
			}
			checkHost(t, name, h, lines)
		})
	}
}

// playClient is like play for the client side, which closes the stream itself.
func playClient(nc net.Conn, lines []line) error {
	if last := lines[len(lines)-1]; last.from != '<' {
		return fmt.Errorf("the recording ends with %q", last.msg)
	}
	defer nc.Close()
	return exchangeLines(nc, lines, '>')
}

func checkHost(t *testing.T, name string, h *recordedHost, lines []line) {
	t.Helper()
	test, runs := testOf(name)
	keys := keysOf(t, lines, '>')
	if len(h.peers) != len(keys) {
		t.Errorf("%d queue pairs instead of %d", len(h.peers), len(keys))
	}
	all := 0
	for _, l := range lines {
		if l.from == '>' && len(l.msg) == keyLen {
			all++
		}
	}
	if h.syncs != all-len(keys) {
		t.Errorf("%d barriers instead of %d", h.syncs, all-len(keys))
	}
	reports := 0
	switch {
	case test.Latency || test.Duration && test.Verb == Send:
	case test.Bidirectional:
		reports = runs
	case test.Verb != Send:
		reports = 1
	}
	if len(h.reported) != reports {
		t.Fatalf("%d reports instead of %d", len(h.reported), reports)
	}
	for _, r := range h.reported {
		if r.Check() != nil || r != *reportOf(lines, '>') {
			t.Errorf("reported: %+v", r)
		}
	}
}
