package filecopy_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// writeTo copies paths to a buffer.
func writeTo(t *testing.T, o filecopytest.Options, out *limited, paths ...string) (record.Summary,
	map[string]string, error) {
	t.Helper()
	o.BlockSize = 64 << 10
	a, b := filecopytest.New(o)
	defer a.Close(nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out.cancel = cancel
	failed := map[string]string{}
	c := source.Config{Failed: func(path string, err error) { failed[path] = err.Error() }}
	for _, name := range paths {
		p, err := source.Open(name)
		must(t, err)
		defer p.Close()
		c.Paths = append(c.Paths, p)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if _, err := source.New(a, 64<<10, c).Run(t.Context()); err != nil &&
			!errors.Is(err, source.ErrFailed) {
			a.Close(err)
		}
	}()
	sum, err := sink.Write(ctx, b, out, out.maxBytes)
	if err != nil && sum.Failed == 0 {
		b.Close(err)
	}
	<-done
	return sum, failed, err
}

// limited is a buffer that fails when it is full.
type limited struct {
	bytes.Buffer

	max      int
	maxBytes int64                   // of sink.Write
	stopAt   int                     // length from which on cancel is called
	cancel   context.CancelCauseFunc // set by writeTo
}

var (
	errFull    = errors.New("the reader has gone")
	errStopped = errors.New("interrupted")
)

func (l *limited) Write(b []byte) (int, error) {
	if l.max > 0 && l.Len()+len(b) > l.max {
		return 0, errFull
	}
	if l.stopAt > 0 && l.Len() >= l.stopAt {
		l.cancel(errStopped)
	}
	return l.Buffer.Write(b)
}

// A file of any size is written in order, with zeros for its holes.
func TestWriter(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/empty", 0, 1)
	write(t, dir+"/small", 1000, 2)
	write(t, dir+"/large", 3_000_000, 3)
	f, err := os.Create(dir + "/sparse")
	must(t, err)
	_, err = f.WriteAt(random(100_000, 4), 500_000)
	must(t, err, f.Truncate(1_000_000), f.Close())
	for _, name := range []string{"empty", "small", "large", "sparse"} {
		for _, o := range []filecopytest.Options{{Blocks: 2},
			{Reorder: true, Seed: 3, Blocks: 12}} {
			var out limited
			sum, failed, err := writeTo(t, o, &out, dir+"/"+name)
			want, _ := os.ReadFile(dir + "/" + name)
			if err != nil || len(failed) > 0 || !bytes.Equal(out.Bytes(), want) ||
				sum.Bytes != uint64(len(want)) {
				t.Errorf("%s: %d bytes, %v, %v, %+v", name, out.Len(), err, failed, sum)
			}
		}
	}
}

// Only one file is written; errors of the output and wrong checksums are errors of the file.
func TestWriterErrors(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a", 3_000_000, 1)
	write(t, dir+"/b", 10, 2)
	write(t, dir+"/d/c", 10, 2)
	var out limited
	sum, failed, err := writeTo(t, filecopytest.Options{}, &out, dir+"/a", dir+"/b")
	if err != nil || out.Len() != 3_000_000 || sum.Failed != 1 ||
		!strings.Contains(failed[dir+"/b"], "one file") {
		t.Errorf("two files: %v, %d bytes, %+v, %v", err, out.Len(), sum, failed)
	}
	_, failed, err = writeTo(t, filecopytest.Options{}, new(limited), dir+"/d")
	if err == nil || len(failed) == 0 {
		t.Errorf("a directory: %v, %v", err, failed)
	}
	sum, _, err = writeTo(t, filecopytest.Options{}, new(limited), dir+"/missing\x1b")
	if err == nil || !strings.Contains(err.Error(), `missing\x1b: no such file`) || sum.Failed != 1 {
		t.Errorf("a missing file: %v, %+v", err, sum)
	}
	_, failed, err = writeTo(t, filecopytest.Options{}, &limited{max: 200_000}, dir+"/a")
	if !errors.Is(err, errFull) || !strings.Contains(failed[dir+"/a"], errFull.Error()) {
		t.Errorf("a full output: %v, %v", err, failed)
	}
	damage := filecopytest.Options{Tamper: func(b *filecopy.Block) bool {
		if b.Session > 1 && b.Seq == 2 {
			b.Data[0] ^= 1
		}
		return true
	}}
	if _, _, err = writeTo(t, damage, new(limited), dir+"/a"); !errors.Is(err, sink.ErrChecksum) {
		t.Errorf("damaged data: %v, want ErrChecksum", err)
	}
}

// A file that is too long is refused before it is written, and a hole does not keep the sink from
// ending.
func TestWriterLimits(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/large", 3_000_000, 3)
	f, err := os.Create(dir + "/sparse")
	must(t, err, f.Truncate(1<<40), f.Close())
	for _, c := range []struct {
		name string
		out  limited
		want error
		most int
	}{
		{"large", limited{maxBytes: 3_000_000}, nil, 3_000_000},
		{"large", limited{maxBytes: 2_999_999}, sink.ErrLimit, 0},
		{"sparse", limited{maxBytes: 1 << 30}, sink.ErrLimit, 0},
		{"sparse", limited{stopAt: 1 << 20}, errStopped, 2 << 20},
	} {
		_, _, err := writeTo(t, filecopytest.Options{}, &c.out, dir+"/"+c.name)
		if !errors.Is(err, c.want) || c.out.Len() > c.most {
			t.Errorf("%s: %v, %d bytes written; want %v", c.name, err, c.out.Len(), c.want)
		}
	}
}
