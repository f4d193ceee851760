package filecopy_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// hostile is a source that sends whatever a test wants.
type hostile struct {
	*testing.T

	pipe    *filecopytest.Pipe
	records filecopy.Session
	to      string
	err     chan error // of the sink
	sum     record.Summary
	failed  map[string]string
}

func newHostile(t *testing.T, c sink.Config) *hostile {
	t.Helper()
	a, b := filecopytest.New(filecopytest.Options{BlockSize: 64 << 10})
	h := &hostile{T: t, pipe: a, to: t.TempDir(), err: make(chan error, 1),
		failed: map[string]string{}}
	var err error
	c.Dir, err = os.OpenRoot(h.to)
	must(t, err)
	c.Failed = func(path string, err error) { h.failed[path] = err.Error() }
	go func() {
		defer c.Dir.Close()
		var err error
		if h.sum, err = sink.New(b, c).Run(t.Context()); err != nil {
			b.Close(err)
		}
		h.err <- err
	}()
	t.Cleanup(func() { a.Close(nil) })
	h.records, err = a.Open(t.Context(), 0)
	must(t, err)
	return h
}

// send sends bytes as a block of a session.
func (h *hostile) send(s filecopy.Session, offset int64, data []byte) {
	b, err := h.pipe.GetFree(h.Context())
	if err != nil {
		return // the sink has ended the connection
	}
	b.Len, b.Offset = copy(b.Data, data), offset
	b.CRC = extent.Sum(b.Data[:b.Len])
	_ = s.Send(b)
}

func (h *hostile) entry(number, parent uint64, kind record.Kind, name string, size int64) {
	e := record.Entry{Number: number, Parent: parent, Kind: kind, Name: name, Size: size,
		Perm:  0o644,
		Mtime: time.Unix(1e9, 0), Link: "x"}
	h.send(h.records, 0, record.AppendEntry(nil, &e))
}

// wanted waits until the sink has asked for a file.
func (h *hostile) wanted(number uint64) {
	for {
		msg, err := h.pipe.ReceiveMessage(h.Context())
		if err != nil {
			return
		}
		_, rest, _ := record.Split(msg)
		for len(rest) > 0 {
			var a record.Answer
			if rest, err = record.NextAnswer(rest, &a); err != nil {
				h.Error(err)
				return
			}
			if a.Number == number {
				return
			}
		}
	}
}

// drain takes the answers until the connection ends.
func (h *hostile) drain() {
	for {
		if _, err := h.pipe.ReceiveMessage(h.Context()); err != nil {
			return
		}
	}
}

func (h *hostile) tree() { h.send(h.records, 0, record.AppendTree(nil, &record.Tree{})) }

// ends waits for the end of the sink.
func (h *hostile) ends() error {
	h.Helper()
	select {
	case err := <-h.err:
		return err
	case <-time.After(20 * time.Second):
		h.Fatal("the sink does not end")
		return nil
	}
}

// A source that breaks the protocol loses the connection. It stores nothing, and nothing outside of
// the target.
func TestHostileSource(t *testing.T) {
	file := func(h *hostile, size int64) filecopy.Session {
		h.entry(1, 0, record.File, "file", size)
		h.wanted(1)
		s, err := h.pipe.Open(h.Context(), 1)
		must(h.T, err)
		return s
	}
	end := func(h *hostile, number uint64, size, data int64, crc uint32) {
		h.send(h.records, 0,
			record.AppendEnd(nil, &record.End{Number: number, Size: size, Data: data,
				CRC: crc}))
	}
	for name, f := range map[string]func(h *hostile){
		"absolute name": func(h *hostile) {
			h.entry(1, 0, record.File, "/etc/passwd",
				1)
		},
		"dots":              func(h *hostile) { h.entry(1, 0, record.Dir, "..", 0) },
		"name with a slash": func(h *hostile) { h.entry(1, 0, record.File, "a/../../b", 1) },
		"empty name":        func(h *hostile) { h.entry(1, 0, record.File, "", 1) },
		"zero byte":         func(h *hostile) { h.entry(1, 0, record.File, "a\x00", 1) },
		"unknown directory": func(h *hostile) { h.entry(1, 7, record.File, "a", 1) },
		"entry 0":           func(h *hostile) { h.entry(0, 0, record.File, "a", 1) },
		"failure of a file that was not asked for": func(h *hostile) {
			b := record.AppendEntry(nil, &record.Entry{Number: 1, Kind: record.File, Name: "a"})
			h.send(h.records, 0, record.AppendFail(b, &record.Fail{Number: 1, Text: "no"}))
		},
		"failure of an unknown file": func(h *hostile) {
			h.send(h.records, 0, record.AppendFail(nil, &record.Fail{Number: 1, Text: "no"}))
		},
		"file as directory": func(h *hostile) {
			h.entry(1, 0, record.File, "a",
				1)
			h.entry(2, 1, record.File, "b", 1)
		},
		"same number twice": func(h *hostile) {
			h.entry(1, 0, record.File, "a",
				1)
			h.entry(1, 0, record.File, "b", 1)
		},
		"garbage": func(h *hostile) {
			h.send(h.records, 0,
				[]byte("\xff\xff\xff\xffgarbage"))
		},
		"session for nothing":     func(h *hostile) { _, _ = h.pipe.Open(h.Context(), 5) },
		"two sessions of records": func(h *hostile) { _, _ = h.pipe.Open(h.Context(), 0) },
		"contents for nothing":    func(h *hostile) { end(h, 3, 1, 1, 0) },
		"end of unknown directory": func(h *hostile) {
			h.send(h.records, 0,
				record.AppendLeave(nil, &record.Leave{Number: 4}))
		},
		"directory without an end": func(h *hostile) {
			h.entry(1, 0, record.Dir, "a",
				0)
			h.tree()
		},
		"two ends": func(h *hostile) {
			h.entry(1, 0, record.File, "a",
				1)
			h.tree()
			h.tree()
		},
		"other size at the end": func(h *hostile) {
			s := file(h, 100)
			h.send(s, 0, make([]byte, 100))
			end(h, 1, 101, 100, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostile(t, sink.Config{})
			f(h)
			if err := h.ends(); !errors.Is(err, record.ErrFormat) {
				t.Errorf("the sink ended with %v, want ErrFormat", err)
			}
			if got := tree(t, h.to); len(got) > 1 || len(got) == 1 && got["a"] == "" {
				t.Errorf("stored: %v", got)
			}
		})
	}
	// What is wrong about one file ends that file.
	for name, f := range map[string]func(h *hostile){
		"block after the end": func(h *hostile) { h.send(file(h, 100), 90, make([]byte, 20)) },
		"huge offset":         func(h *hostile) { h.send(file(h, 100), 1<<62, make([]byte, 20)) },
		"overlap": func(h *hostile) {
			s := file(h, 100)
			h.send(s, 0, make([]byte, 60))
			h.send(s, 50, make([]byte, 50))
		},
		"fewer bytes than the end says": func(h *hostile) {
			s := file(h, 100)
			h.send(s, 0, make([]byte, 60))
			_ = s.End()
			end(h, 1, 100, 100, 0)
		},
		"wrong checksum": func(h *hostile) {
			s := file(h, 100)
			h.send(s, 0, make([]byte, 100))
			_ = s.End()
			end(h, 1, 100, 100, 12345)
		},
		"small file of another size": func(h *hostile) {
			h.entry(1, 0, record.File, "file", 100)
			h.wanted(1)
			rec := make([]byte, record.DataOverhead+50)
			record.DataHeader(rec, 1, extent.Sum(rec[record.DataOverhead:]), 50)
			h.send(h.records, 0, rec)
		},
		"small file with a wrong checksum": func(h *hostile) {
			h.entry(1, 0, record.File, "file", 50)
			h.wanted(1)
			rec := make([]byte, record.DataOverhead+50)
			record.DataHeader(rec, 1, 1, 50)
			h.send(h.records, 0, rec)
		},
		"device": func(h *hostile) { h.entry(1, 0, 99, "file", 0) },
		"reserved name": func(h *hostile) {
			h.entry(1, 0, record.File,
				".gorxe-0123456789abcdef.part", 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostile(t, sink.Config{})
			f(h)
			h.tree()
			if err := h.ends(); err != nil {
				t.Errorf("the sink ended with %v", err)
			}
			if h.sum.Failed != 1 || len(h.failed) != 1 {
				t.Errorf("failed: %v, %+v, want one file", h.failed, h.sum)
			}
			if got := tree(t, h.to); len(got) > 0 {
				t.Errorf("stored: %v", got)
			}
		})
	}
}

// Links that the source creates, or that were there, are not followed afterwards.
func TestHostileLinks(t *testing.T) {
	outside := t.TempDir()
	h := newHostile(t, sink.Config{})
	e := record.Entry{Number: 1, Kind: record.Symlink, Name: "link", Link: outside}
	h.send(h.records, 0, record.AppendEntry(nil, &e))
	h.wanted(1)
	h.entry(2, 0, record.Dir, "link", 0)
	h.entry(3, 2, record.File, "escaped", 0)
	h.send(h.records, 0, record.AppendLeave(nil, &record.Leave{Number: 2}))
	h.tree()
	if err := h.ends(); err != nil {
		t.Fatal(err)
	}
	if len(tree(t, outside)) > 0 {
		t.Error("a file was stored outside of the target")
	}
	if h.sum.Failed != 2 || !strings.Contains(h.failed["link"], "symbolic link") {
		t.Errorf("failed: %v", h.failed)
	}
}

// A source cannot make the sink remember too much, or go too deep, and must read its answers.
func TestHostileFlood(t *testing.T) {
	const unknown = 99
	for name, c := range map[string]struct {
		parent func(n uint64) uint64
		kind   record.Kind
		text   string
	}{
		"directories": {func(uint64) uint64 { return 0 }, record.Dir, "65536"},
		"depth":       {func(n uint64) uint64 { return n - 1 }, record.Dir, "2048"},
		"answers":     {func(uint64) uint64 { return 0 }, unknown, "65536"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostile(t, sink.Config{DryRun: true})
			if c.kind != unknown {
				go h.drain()
			}
			go func() {
				var block []byte
				for n := uint64(1); n < 1<<18; n++ {
					e := record.Entry{Number: n, Parent: c.parent(n), Kind: c.kind,
						Name: strings.Repeat("d", int(n%7)+1)}
					block = record.AppendEntry(block, &e)
					if len(block) > 60<<10 || n == 1<<18-1 {
						h.send(h.records, 0, block)
						block = nil
					}
				}
			}()
			if err := h.ends(); !errors.Is(err, record.ErrFormat) ||
				!strings.Contains(err.Error(), c.text) {
				t.Errorf("the sink ended with %v, want the limit %s", err, c.text)
			}
		})
	}
}

// A sink that breaks the protocol ends the source with an error.
func TestHostileSink(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/large", 1<<20, 1)
	answer := func(list ...record.Answer) []byte {
		msg := []byte{byte(record.MessageAnswers)}
		for i := range list {
			msg = record.AppendAnswer(msg, &list[i])
		}
		return msg
	}
	want := record.Answer{Number: 1, Verdict: record.Want}
	for name, msgs := range map[string][][]byte{
		"empty message":     {{}},
		"unknown message":   {{99}},
		"handshake":         {{byte(record.MessageHello)}},
		"unknown verdict":   {{byte(record.MessageAnswers), 77, 1}},
		"unknown entry":     {answer(record.Answer{Number: 9, Verdict: record.Done})},
		"wanted twice":      {answer(want, want)},
		"early summary":     {(&record.Summary{}).Append(nil)},
		"incomplete answer": {answer(want)[:1], answer(want)[:2]},
		"ranges that overlap": {answer(record.Answer{Number: 1, Verdict: record.Want,
			Have: []extent.Extent{{Offset: 0, Length: 2 << 20}}})},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := filecopytest.New(filecopytest.Options{BlockSize: 64 << 10})
			defer a.Close(nil)
			p, err := source.Open(dir + "/large")
			must(t, err)
			defer p.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			go func() {
				for { // the entry
					r, err := b.GetReady(ctx)
					if err != nil {
						return
					}
					if r.Kind == filecopy.Data {
						b.PutFree(r.Block)
						for _, m := range msgs {
							_ = b.SendMessage(ctx, m)
						}
						msgs = nil
					}
				}
			}()
			_, err = source.New(a, 64<<10, source.Config{Paths: []*source.Path{p}}).Run(ctx)
			if !errors.Is(err, record.ErrFormat) {
				t.Errorf("Run() = %v, want ErrFormat", err)
			}
		})
	}
}

// A source that sends a file and then says that it cannot does not confuse the sink, whatever it
// does with the file at that moment.
func TestHostileFailures(t *testing.T) {
	h := newHostile(t, sink.Config{})
	const files = 500
	for n := uint64(1); n <= files; n++ {
		h.entry(n, 0, record.File, fmt.Sprint("file", n), 100)
	}
	h.wanted(files)
	go h.drain()
	rec := make([]byte, record.DataOverhead+100)
	for n := uint64(1); n <= files; n++ {
		record.DataHeader(rec, n, extent.Sum(rec[record.DataOverhead:]), 100)
		fail := record.AppendFail(nil, &record.Fail{Number: n, Text: "it vanished"})
		h.send(h.records, 0, append(rec[:len(rec):len(rec)], fail...))
	}
	h.tree()
	if err := h.ends(); err != nil && !errors.Is(err, record.ErrFormat) {
		t.Fatalf("the sink ended with %v", err)
	}
	for name, text := range tree(t, h.to) {
		if isTemporary(name) || !strings.Contains(text, " 100 bytes") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
