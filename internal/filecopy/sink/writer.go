package sink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// errOneFile is the answer to all entries but the first file.
var errOneFile = errors.New("the receiver writes to its standard output, and takes one file")

// zeros is written in place of holes.
var zeros [64 << 10]byte

// writer writes one file to an io.Writer.
type writer struct {
	conn  filecopy.Conn
	out   io.Writer
	limit int64 // bytes

	records   order
	recordsID uint32
	begun     bool

	blocks   order
	blocksID uint32
	opened   bool
	closed   bool

	entry *record.Entry // nil: none yet
	end   *record.End   // nil: more comes
	at    int64         // bytes written
	crc   uint32        // of those
	over  bool          // the file was written, or failed
	tree  bool          // no more entries come
	sum   record.Summary
	err   error // of the file
}

// Write writes the first file or stream that a source sends to out, in order. A block is written
// when its checksum was verified; that of the whole file is verified at the end. Other entries are
// refused. maxBytes limits the size of the file; 0: there is no limit. When ctx ends, a call of
// out.Write that waits goes on.
func Write(ctx context.Context, conn filecopy.Conn, out io.Writer, maxBytes int64) (record.Summary,
	error) {
	w := &writer{conn: conn, out: out, limit: math.MaxInt64}
	if maxBytes > 0 {
		w.limit = maxBytes
	}
	defer func() {
		w.records.drop(conn)
		w.blocks.drop(conn)
	}()
	for !w.tree || w.entry != nil && !w.over {
		r, err := conn.GetReady(ctx)
		if err == nil {
			err = w.event(ctx, &r)
		}
		if err != nil {
			return w.sum, err
		}
	}
	if err := conn.SendMessage(ctx, w.sum.Append(nil)); err != nil {
		return w.sum, err
	}
	if w.err == nil && w.entry == nil {
		w.err = errors.New("the sender has sent no file")
	}
	return w.sum, w.err
}

func (w *writer) event(ctx context.Context, r *filecopy.Ready) error {
	switch r.Kind {
	case filecopy.Opened:
		if r.Param == 0 && !w.begun {
			w.begun, w.recordsID = true, r.Session
			return nil
		}
		if w.opened || w.entry == nil || r.Param != w.entry.Number {
			return fmt.Errorf("%w: a session for entry %d", record.ErrFormat, r.Param)
		}
		w.opened, w.blocksID = true, r.Session
	case filecopy.Data:
		return w.block(ctx, r.Session, r.Block)
	case filecopy.Ended:
		if w.opened && r.Session == w.blocksID {
			w.closed = true
			return w.advance(ctx)
		}
	case filecopy.Aborted:
		if w.begun && r.Session == w.recordsID {
			return errors.New("the sender has stopped")
		}
	}
	return nil
}

func (w *writer) block(ctx context.Context, session uint32, b *filecopy.Block) error {
	records := w.begun && session == w.recordsID
	o := &w.records
	if !records {
		if !w.opened || session != w.blocksID {
			return fmt.Errorf("%w: a block of session %d", record.ErrFormat, session)
		}
		o = &w.blocks
	}
	if b.Len < 0 || b.Len > len(b.Data) || extent.Sum(b.Data[:b.Len]) != b.CRC {
		w.conn.PutFree(b)
		return ErrChecksum
	}
	if err := o.add(b); err != nil {
		w.conn.PutFree(b)
		return err
	}
	for b := o.take(); b != nil; b = o.take() {
		err := error(nil)
		if records {
			err = w.handle(ctx, b.Data[:b.Len])
		} else {
			err = w.write(ctx, b.Offset, b.Data[:b.Len])
		}
		w.conn.PutFree(b)
		if err != nil {
			return err
		}
	}
	return nil
}

// handle handles the records of a block.
func (w *writer) handle(ctx context.Context, data []byte) error {
	for len(data) > 0 {
		rec, rest, err := record.Next(data)
		if err != nil {
			return err
		}
		data = rest
		switch r := rec.(type) {
		case *record.Entry:
			err = w.announced(ctx, r)
		case *record.Data:
			if w.mine(r.Number) {
				w.end = &record.End{Size: w.entry.Size, Data: w.entry.Size, CRC: r.CRC}
				w.closed = true
				if err = w.write(ctx, 0, r.Contents); err == nil {
					err = w.advance(ctx)
				}
			}
		case *record.End:
			if w.mine(r.Number) {
				w.end = r
				err = w.advance(ctx)
			}
		case *record.Fail:
			switch {
			case w.mine(r.Number):
				err = w.finish(ctx, errors.New("the sender could not read it: "+
					filecopy.Printable(r.Text)))
			case r.Number == 0: // the text has the path
				w.sum.Failed++
				if w.entry == nil && w.err == nil {
					w.err = errors.New("sender: " + filecopy.Printable(r.Text))
				}
			}
		case *record.Tree:
			w.tree = true
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mine reports whether a number is that of the file that is being written.
func (w *writer) mine(number uint64) bool {
	return w.entry != nil && w.entry.Number == number && !w.over && w.end == nil
}

func (w *writer) announced(ctx context.Context, e *record.Entry) error {
	if w.entry != nil || e.Parent != 0 || e.Kind != record.File && e.Kind != record.Stream {
		if w.entry == nil {
			w.err = errOneFile
		}
		w.sum.Failed++
		return w.answer(ctx, &record.Answer{Number: e.Number, Verdict: record.Failed,
			Text: errOneFile.Error()})
	}
	w.entry = e
	if e.Kind == record.File {
		if err := w.check(e.Size); err != nil {
			return err
		}
	}
	return w.answer(ctx, &record.Answer{Number: e.Number, Verdict: record.Want})
}

func (w *writer) answer(ctx context.Context, a *record.Answer) error {
	return w.conn.SendMessage(ctx, record.AppendAnswer([]byte{byte(record.MessageAnswers)}, a))
}

// write writes data at an offset, and zeros before it for a hole.
func (w *writer) write(ctx context.Context, offset int64, data []byte) error {
	if w.over {
		return nil
	}
	if offset < w.at {
		return fmt.Errorf("%w: a block at offset %d after one that ends at %d", record.ErrFormat,
			offset, w.at)
	}
	if err := w.check(offset + int64(len(data))); err != nil {
		return err
	}
	err := w.skip(ctx, offset-w.at)
	if err == nil {
		_, err = w.out.Write(data)
	}
	if err != nil {
		return w.finish(ctx, err)
	}
	w.at += int64(len(data))
	w.crc = extent.Append(w.crc, data)
	return nil
}

// check returns an error if the file may not have n bytes.
func (w *writer) check(n int64) error {
	switch {
	case n < 0 || w.entry.Kind == record.File && n > w.entry.Size:
		return fmt.Errorf("%w: the file ends at %d", record.ErrFormat, n)
	case n > w.limit:
		return fmt.Errorf("%w: the receiver accepts at most %d bytes at a time", ErrLimit, w.limit)
	}
	return nil
}

// skip writes n zeros.
func (w *writer) skip(ctx context.Context, n int64) error {
	w.crc = extent.Combine(w.crc, extent.Zeros(n), n)
	w.at += n
	for n > 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		k, err := w.out.Write(zeros[:min(n, int64(len(zeros)))])
		if err != nil {
			return err
		}
		n -= int64(k)
	}
	return nil
}

// advance ends the file when all of it has arrived.
func (w *writer) advance(ctx context.Context) error {
	if w.over || w.end == nil || !w.closed {
		return nil
	}
	if w.end.Size < w.at {
		return w.finish(ctx, fmt.Errorf("%w: %d bytes instead of %d", record.ErrFormat, w.at,
			w.end.Size))
	}
	if err := w.check(w.end.Size); err != nil {
		return err
	}
	if err := w.skip(ctx, w.end.Size-w.at); err != nil {
		return w.finish(ctx, err)
	}
	if w.crc != w.end.CRC {
		return w.finish(ctx, fmt.Errorf("the whole file: %w", ErrChecksum))
	}
	return w.finish(ctx, nil)
}

// finish ends the file.
func (w *writer) finish(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	w.over, w.err = true, err
	a := record.Answer{Number: w.entry.Number, Verdict: record.Done}
	if err != nil {
		a.Verdict, a.Text = record.Failed, err.Error()
		w.sum.Failed++
	} else {
		w.sum.Stored++
		w.sum.Bytes = uint64(w.at)
	}
	return w.answer(ctx, &a)
}
