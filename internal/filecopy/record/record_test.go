package record

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
)

// samples returns one record of each type, in a block, and what decoding returns.
func samples() (block []byte, want []any) {
	e := &Entry{Number: 7, Parent: 3, Kind: Symlink, Perm: 0o754, Mtime: time.Unix(1700000000, 999),
		Size: 1 << 40, Sparse: true, Version: 0xfedcba9876543210, Name: "a\nb\xff", Link: "../x"}
	old := &Entry{Number: 8, Kind: Dir, Mtime: time.Unix(-5, 1), Name: strings.Repeat("n", MaxName)}
	end := &End{7, 1 << 40, 5, 0xabcd}
	fail := &Fail{8, true, "it shrank"}
	leave, tree := &Leave{9, true}, &Tree{10, 11}
	data := &Data{12, 13, []byte("contents")}
	block = AppendEntry(nil, e)
	block = AppendEntry(block, old)
	at := len(block)
	block = append(block, make([]byte, DataOverhead)...)
	DataHeader(block[at:], data.Number, data.CRC, len(data.Contents))
	block = append(block, data.Contents...)
	block = AppendEnd(block, end)
	block = AppendFail(block, fail)
	at = len(block)
	block = append(block, make([]byte, DataOverhead+3)...)
	SkipHeader(block[at:], DataOverhead+3)
	block = AppendTree(AppendLeave(block, leave), tree)
	return block, []any{e, old, data, end, fail, nil, leave, tree}
}

func TestRecords(t *testing.T) {
	block, want := samples()
	for i, w := range want {
		got, rest, err := Next(block)
		if err != nil || !reflect.DeepEqual(got, w) {
			t.Fatalf("record %d: %+v, %v, want %+v", i, got, err, w)
		}
		if e, ok := got.(*Entry); ok && EntryLen(e) != len(block)-len(rest) {
			t.Errorf("EntryLen() = %d, want %d", EntryLen(e), len(block)-len(rest))
		}
		block = rest
	}
	if len(block) != 0 {
		t.Errorf("%d bytes left", len(block))
	}
}

func TestAnswers(t *testing.T) {
	want := []Answer{
		{Number: 1, Verdict: Want},
		{Number: 1 << 60, Verdict: Want, Have: []extent.Extent{{Offset: 0, Length: 5, CRC: 1},
			{Offset: 1 << 50, Length: 1 << 40, CRC: 2}}},
		{Number: 2, Verdict: Skipped, Reason: Newer},
		{Number: 3, Verdict: Done},
		{Number: 4, Verdict: Failed, Text: "no space left on device"},
		{Number: 5, Verdict: Deleted, Text: "old\n"},
	}
	var msg []byte
	for i := range want {
		msg = AppendAnswer(msg, &want[i])
	}
	for i := range want {
		var got Answer
		rest, err := NextAnswer(msg, &got)
		if err != nil || !reflect.DeepEqual(got, want[i]) {
			t.Fatalf("answer %d: %+v, %v, want %+v", i, got, err, want[i])
		}
		msg = rest
	}
	var many Answer
	for i := range int64(2 * MaxHave) {
		many.Have = append(many.Have, extent.Extent{Offset: 1<<55 + i<<50, Length: 1 << 45})
	}
	many.Verdict, many.Number = Want, 1<<63
	msg = AppendAnswer(nil, &many)
	if _, err := NextAnswer(msg, &many); err != nil || len(many.Have) != MaxHave ||
		len(msg) > MaxAnswer {
		t.Errorf("NextAnswer() = %v, %d ranges in %d bytes", err, len(many.Have), len(msg))
	}
}

func TestMessages(t *testing.T) {
	h := Hello{Version: Version, Nonce: [NonceSize]byte{1, 2}}
	c := Challenge{Version: Version, Token: true, Nonce: [NonceSize]byte{3}}
	r := Ready{Proof: [ProofSize]byte{4}, Single: true, Top: &Attributes{0o750, time.Unix(5, 6)}}
	s := Summary{1, 2, 3, 4, 5, 6}
	q := Request{Pull: true, Overwrite: Never, Delete: true, DryRun: true, Single: true, Limit: 9,
		Target: "t/\n", Sources: []string{"a", ""}, Rules: []Rule{{true, "*.o"}, {false, "x"}},
		Top: &Attributes{0o700, time.Unix(-1, 2)}}
	for _, m := range []struct {
		msg   []byte
		parse func([]byte) (any, error)
		want  any
	}{
		{h.Append(nil), func(b []byte) (any, error) { v, err := ParseHello(b); return v, err }, h},
		{c.Append(nil), func(b []byte) (any, error) { v, err := ParseChallenge(b); return v, err },
			c},
		{r.Append(nil), func(b []byte) (any, error) { v, err := ParseReady(b); return v, err }, r},
		{s.Append(nil), func(b []byte) (any, error) { v, err := ParseSummary(b); return v, err },
			s},
		{q.Append([]byte{0}),
			func(b []byte) (any, error) { v, err := ParseRequest(b); return v, err }, &q},
	} {
		got, err := m.parse(m.msg[1:])
		if err != nil || !reflect.DeepEqual(got, m.want) {
			t.Errorf("got %+v, %v, want %+v", got, err, m.want)
		}
		for n := 1; n < len(m.msg); n++ { // a peer may cut it anywhere
			if _, err := m.parse(m.msg[1:n]); !errors.Is(err, ErrFormat) {
				t.Errorf("%d of %d bytes of %+v: %v, want ErrFormat", n, len(m.msg), m.want, err)
			}
		}
	}
	if err := q.Check(); err != nil {
		t.Error(err)
	}
	for _, q := range []Request{{Target: strings.Repeat("x", 5000)},
		{Sources: make([]string, maxList+1)}, {Rules: []Rule{{Pattern: strings.Repeat("x", 1001)}}},
		{Sources: slicesOf(strings.Repeat("x", 4000), 30)}} {
		if err := q.Check(); err == nil {
			t.Errorf("Check() accepts a request of %d bytes", len(q.Append(nil)))
		}
	}
}

func slicesOf(s string, n int) (list []string) {
	for range n {
		list = append(list, s)
	}
	return list
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "...", "a\nb", "\xff\xfe", " ",
		strings.Repeat("x", MaxName)} {
		if err := CheckName(name); err != nil {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "/", "a/b", "/etc/passwd", "../x", "a\x00b",
		strings.Repeat("x", MaxName+1)} {
		if err := CheckName(name); !errors.Is(err, ErrFormat) {
			t.Errorf("CheckName(%q) = %v, want ErrFormat", name, err)
		}
	}
}

// Bytes of a peer never panic, and never make the decoder loop or return something out of range.
func FuzzDecode(f *testing.F) {
	block, _ := samples()
	f.Add(block)
	f.Add(AppendAnswer(nil, &Answer{Number: 9, Verdict: Want, Have: make([]extent.Extent, 3)}))
	f.Add((&Request{Sources: []string{"a"}, Rules: []Rule{{true, "*"}}}).Append(nil))
	f.Add([]byte{byte(TypeData), 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		for rest := data; len(rest) > 0; {
			rec, next, err := Next(rest)
			if err != nil {
				break
			}
			if len(next) >= len(rest) {
				t.Fatal("no progress")
			}
			if e, ok := rec.(*Entry); ok && (e.Size < 0 || e.Perm > 0o777) {
				t.Fatalf("entry %+v", e)
			}
			if e, ok := rec.(*End); ok && (e.Size < 0 || e.Data < 0 || e.Data > e.Size) {
				t.Fatalf("end %+v", e)
			}
			if d, ok := rec.(*Data); ok && !bytes.Contains(rest, d.Contents) {
				t.Fatal("contents are not in the block")
			}
			rest = next
		}
		for rest := data; len(rest) > 0; {
			var a Answer
			next, err := NextAnswer(rest, &a)
			if err != nil {
				break
			}
			if len(next) >= len(rest) {
				t.Fatal("no progress")
			}
			for _, e := range a.Have {
				if e.Offset < 0 || e.Length < 0 || e.End() < 0 {
					t.Fatalf("range %+v", e)
				}
			}
			rest = next
		}
		if _, err := ParseRequest(data); err != nil && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
	})
}
