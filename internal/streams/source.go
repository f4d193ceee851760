package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gorxe/gorxe/internal/cli"
)

// Source is the stream of one device.
type Source interface {
	// device returns the number of the device.
	device() uint8
	// next reads into buf. It returns io.EOF, possibly with data, at the end of the stream.
	next(ctx context.Context, buf []byte) (int, error)
	// size returns the length of the stream in bytes, or -1 if it is unknown.
	size() int64
	// truncates reports whether an interruption leaves the stream incomplete.
	truncates() bool
	close() error
}

// Close closes sources. Errors of closing files that were only read have no consequence.
func Close(list []Source) {
	for _, s := range list {
		_ = s.close()
	}
}

// TotalSize returns the sum of the lengths of all streams in bytes, or -1 if one is unknown.
func TotalSize(list []Source) (n int64) {
	for _, s := range list {
		size := s.size()
		if size < 0 {
			return -1
		}
		n += size
	}
	return n
}

// file is the stream of a file or of standard input.
type file struct {
	dev uint8
	f   *os.File
	len int64 // -1 for anything but regular files
	in  *pipe // reads f if it is not a regular file
}

// OpenFiles opens the sources that arguments of the form FILE, N=FILE or - name. N is the number of
// the device; without it the number is first plus the index of the argument.
func OpenFiles(args []string, first int) (list []Source, err error) {
	used := map[int]string{}
	stdin := false
	defer func() {
		if err != nil {
			Close(list)
		}
	}()
	for i, arg := range args {
		dev, name := first+i, arg
		if number, rest, ok := strings.Cut(arg, "="); ok {
			n, e := strconv.ParseUint(number, 10, 31)
			if e == nil {
				dev, name = int(n), rest
			}
		}
		if dev > 255 {
			return list, cli.Usagef("%s would be device %d: device numbers are 0 to 255", name, dev)
		}
		if other, ok := used[dev]; ok {
			return list, cli.Usagef("%s and %s are both device %d: write one of them as N=FILE",
				other, name, dev)
		}
		used[dev] = name
		if name == "-" && stdin {
			return list, cli.Usagef("standard input can be the stream of one device only: use - once")
		}
		stdin = stdin || name == "-"
		f, err := openFile(name)
		if err != nil {
			return list, fmt.Errorf("open a stream: %w", err)
		}
		f.dev = uint8(dev)
		list = append(list, f)
	}
	return list, nil
}

func openFile(name string) (*file, error) {
	s := &file{f: os.Stdin, len: -1}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		s.f = f
	}
	if info, err := s.f.Stat(); err == nil && info.Mode().IsRegular() {
		s.len = info.Size()
	} else if err == nil && info.IsDir() {
		_ = s.f.Close()
		return nil, fmt.Errorf("%s is a directory: name a file", name)
	}
	return s, nil
}

func (s *file) device() uint8   { return s.dev }
func (s *file) close() error    { return s.f.Close() }
func (s *file) size() int64     { return s.len }
func (s *file) truncates() bool { return s.len >= 0 }

// next fills buf from a regular file. From a pipe it returns what comes within a short time.
func (s *file) next(ctx context.Context, buf []byte) (int, error) {
	if s.len < 0 {
		if s.in == nil {
			s.in = newPipe(s.f)
		}
		return s.in.next(ctx, buf)
	}
	n, err := io.ReadFull(s.f, buf)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}
