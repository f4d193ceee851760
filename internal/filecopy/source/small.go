package source

import (
	"context"
	"io"
	"os"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// readSmall reads files that share blocks.
func (s *Source) readSmall(ctx context.Context) error {
	for it := s.next(&s.small); it != nil; it = s.next(&s.small) {
		s.pack.enter()
		err := s.sendSmall(ctx, it)
		s.pack.leave()
		if err != nil {
			return err
		}
	}
	return nil
}

// sendSmall sends one file. Its error ends the transfer.
func (s *Source) sendSmall(ctx context.Context, it *item) error {
	if err := s.limit.wait(ctx, int(it.Size)); err != nil {
		return err
	}
	f, err := s.open(it)
	if err != nil {
		return s.fail(ctx, it, changed(err), reason(err))
	}
	defer f.Close()
	space, err := s.pack.reserve(ctx, record.DataOverhead+int(it.Size))
	if err != nil {
		return err
	}
	contents := space.data[record.DataOverhead:]
	if err := it.readAll(f, contents); err != nil {
		record.SkipHeader(space.data, len(space.data))
		s.pack.commit(space)
		return s.fail(ctx, it, changed(err), reason(err))
	}
	record.DataHeader(space.data, it.Number, extent.Sum(contents), len(contents))
	s.pack.commit(space)
	s.sent.Add(it.Size)
	s.bytes.Add(it.Size)
	return nil
}

// readAll reads the whole file into b, which has the size that was announced.
func (it *item) readAll(f *os.File, b []byte) error {
	_, err := io.ReadFull(f, b)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	return it.check(f) // also if it is shorter
}
