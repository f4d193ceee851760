package source

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// directAlign is the alignment of reads past the page cache.
const directAlign = 4096

// readLarge reads files that have blocks of their own.
func (s *Source) readLarge(ctx context.Context) error {
	for it := s.nextLarge(); it != nil; it = s.nextLarge() {
		name := it.text()
		s.current.Store(&name)
		err := error(nil)
		if it.Kind == record.Stream {
			err = s.sendStream(ctx, it)
		} else {
			err = s.sendLarge(ctx, it)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// large is a file that is being sent.
type large struct {
	*Source
	it      *item
	f       *os.File
	direct  *os.File // nil: only f
	session filecopy.Session
	set     extent.Set // what was sent, and what the sink has
}

// sendLarge sends one file. Its error ends the transfer.
func (s *Source) sendLarge(ctx context.Context, it *item) error {
	f, err := s.open(it)
	if err != nil {
		return s.fail(ctx, it, changed(err), reason(err))
	}
	defer f.Close()
	session, err := s.conn.Open(ctx, it.Number)
	if err != nil {
		return err
	}
	l := &large{Source: s, it: it, f: f, session: session}
	if s.c.Direct {
		l.openDirect()
		if l.direct != nil {
			defer l.direct.Close()
		}
	}
	err = l.send(ctx)
	var fatal fatalError
	switch {
	case errors.As(err, &fatal):
		session.Abort(err.Error())
		return fatal.error
	case err != nil:
		session.Abort(err.Error())
		return s.fail(ctx, it, changed(err), reason(err))
	}
	if err := session.End(); err != nil {
		return err
	}
	end := record.End{Number: it.Number, Size: it.Size, Data: l.set.Bytes(),
		CRC: l.set.CRC(it.Size)}
	return s.pack.add(ctx, record.AppendEnd(nil, &end))
}

// fatalError marks errors that end the transfer.
type fatalError struct{ error }

func (f fatalError) Unwrap() error { return f.error }

// openDirect opens the file again to read past the page cache, if the file system can do that.
func (l *large) openDirect() {
	root, err := l.dirs.Use(l.it.dir)
	if err != nil {
		return
	}
	defer l.dirs.Release(l.it.dir)
	f, err := root.OpenFile(l.it.name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_DIRECT, 0)
	if err != nil {
		return
	}
	if l.it.check(f) != nil {
		_ = f.Close()
		return
	}
	l.direct = f
}

// readAt reads from a file. Tests replace it.
var readAt = (*os.File).ReadAt

// piece is a block that is being read.
type piece struct {
	b    *filecopy.Block
	err  error
	done chan struct{}
}

// send sends what the sink does not have.
func (l *large) send(ctx context.Context) error {
	data, err := dataRanges(l.f, l.it.Size)
	if err != nil {
		return err
	}
	for _, e := range l.it.have {
		if err := l.set.Add(e); err != nil || e.End() > l.it.Size {
			return fatalError{errors.Join(record.ErrFormat, err)}
		}
	}
	l.bytes.Add(l.set.Bytes())
	// Blocks are read ahead by goroutines and sent in order.
	ahead := make(chan *piece, readAhead-1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(ahead)
		l.readPieces(ctx, data, ahead)
	})
	for p := range ahead {
		<-p.done
		if err == nil {
			if err = l.sendPiece(ctx, p); err == nil {
				continue
			}
			cancel()
		}
		if p.b != nil {
			l.conn.PutFree(p.b)
		}
	}
	wg.Wait()
	if err == nil {
		err = l.it.check(l.f)
	}
	return err
}

// readPieces gets a block for each part of the file that must be sent, and reads it.
func (l *large) readPieces(ctx context.Context, data []extent.Extent, ahead chan<- *piece) {
	var have extent.Set
	for _, e := range l.it.have {
		_ = have.Add(e) // checked by send
	}
	for _, d := range data {
		for _, m := range have.Missing(d.Offset, d.End()) {
			for at := m.Offset; at < m.End(); {
				n := min(int64(l.blocks), m.End()-at)
				b, err := l.conn.GetFree(ctx)
				p := &piece{b: b, done: make(chan struct{})}
				if err != nil {
					p.err = fatalError{err}
					close(p.done)
				} else {
					b.Offset, b.Len = at, int(n)
					go l.read(p)
				}
				ahead <- p // send always reads to the end
				if err != nil {
					return
				}
				at += n
			}
		}
	}
}

// read reads one block.
func (l *large) read(p *piece) {
	defer close(p.done)
	b := p.b
	if p.err = l.readAt(b.Data[:b.Len], b.Offset); p.err == nil {
		b.CRC = extent.Sum(b.Data[:b.Len])
	}
}

func (l *large) readAt(b []byte, offset int64) error {
	f := l.f
	if l.direct != nil && offset%directAlign == 0 && len(b)%directAlign == 0 {
		f = l.direct
	}
	n, err := readAt(f, b, offset)
	if f == l.direct && errors.Is(err, unix.EINVAL) { // larger alignment, or not supported
		n, err = l.f.ReadAt(b, offset)
	}
	if n == len(b) {
		return nil
	}
	if !errors.Is(err, io.EOF) {
		return err
	}
	if err := l.it.check(l.f); err != nil {
		return err
	}
	return changeError{errChanged}
}

// sendPiece sends a block that was read. On errors, the caller keeps the block.
func (l *large) sendPiece(ctx context.Context, p *piece) error {
	if p.err != nil {
		return p.err
	}
	if l.it.stop.Load() {
		return filecopy.ErrStopped
	}
	if err := l.limit.wait(ctx, p.b.Len); err != nil {
		return fatalError{err}
	}
	n := int64(p.b.Len)
	e := extent.Extent{Offset: p.b.Offset, Length: n, CRC: p.b.CRC}
	if err := l.set.Add(e); err != nil {
		return fatalError{err}
	}
	if err := l.session.Send(p.b); errors.Is(err, filecopy.ErrStopped) {
		return err
	} else if err != nil {
		return fatalError{err}
	}
	p.b = nil
	l.sent.Add(n)
	l.bytes.Add(n)
	return nil
}
