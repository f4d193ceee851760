package source

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// readSmall reads files that share blocks.
func (s *Source) readSmall(ctx context.Context) error {
	var list [smallTogether]*item
	for n := s.nextSmall(list[:]); n > 0; n = s.nextSmall(list[:]) {
		s.pack.enter()
		err := error(nil)
		for _, it := range list[:n] {
			if err = s.sendSmall(ctx, it); err != nil {
				break
			}
		}
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
	fd, err := s.openSmall(it)
	if err != nil {
		return s.fail(ctx, it, false, reason(err))
	}
	defer unix.Close(fd)
	space, err := s.pack.reserve(ctx, record.DataOverhead+int(it.Size))
	if err != nil {
		return err
	}
	contents := space.data[record.DataOverhead:]
	if err := it.readAll(fd, contents); err != nil {
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
func (it *item) readAll(fd int, b []byte) error {
	for len(b) > 0 {
		n, err := dirs.Retry(func() (int, error) { return unix.Read(fd, b) })
		if err != nil {
			if changed := it.checkFD(fd); changed != nil { // it may be a FIFO now
				return changed
			}
			return err
		}
		if n == 0 {
			break
		}
		b = b[n:]
	}
	return it.checkFD(fd) // also if it is shorter
}
