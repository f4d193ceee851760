package source

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
)

// maxPieces bounds the number of data ranges of a file that are looked up. Holes after the last one
// are sent as zeros.
const maxPieces = 1 << 20

// dataRanges returns the ranges of a file that are not holes.
func dataRanges(f *os.File, size int64) (list []extent.Extent, err error) {
	fd := int(f.Fd())
	for at := int64(0); at < size; {
		begin, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // a hole up to the end
			break
		}
		end := size
		if err == nil && len(list) < maxPieces {
			end, err = unix.Seek(fd, begin, unix.SEEK_HOLE)
		}
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // not supported
			return []extent.Extent{{Offset: 0, Length: size}}, nil
		}
		if err != nil {
			return nil, err
		}
		begin, end = min(begin, size), min(end, size)
		if end <= begin { // the file shrinks
			break
		}
		list = append(list, extent.Extent{Offset: begin, Length: end - begin})
		at = end
	}
	return list, nil
}
