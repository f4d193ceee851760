package statusbyte

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
)

// source is a device's stream: next fills buf and says how much of it; io.EOF beside data or without ends it.
type source interface {
	device() uint8
	next(ctx context.Context, buf []byte) (int, error)
	size() int64 // bytes of the whole stream; -1: nobody knows
	whole() bool // an interruption does not end it properly, but cuts it off
	close() error
}

// fileSource reads a file or standard input.
type fileSource struct {
	dev  uint8
	file *os.File
	len  int64
	pipe *pump // between file and next, for files that may say nothing for long; nil: for others, or not yet
}

// openFiles makes sources of arguments "FILE", "N=FILE" or "-"; without N devices are numbered from first on.
func openFiles(args []string, first int) (list []source, err error) {
	used := map[int]string{}
	input := false
	defer func() {
		if err != nil {
			for _, s := range list {
				_ = s.close()
			}
		}
	}()
	for i, arg := range args {
		device, name := first+i, arg
		if number, rest, ok := strings.Cut(arg, "="); ok {
			n, e := strconv.ParseUint(number, 10, 31)
			if e == nil {
				device, name = int(n), rest
			}
		}
		if device > 255 {
			return list, cli.Usagef("%s would be device %d: they go from 0 to 255", name, device)
		}
		if other, ok := used[device]; ok {
			return list, cli.Usagef("%s and %s are both device %d: write one as N=FILE", other, name, device)
		}
		if name == "-" {
			if input {
				return list, cli.Usagef("standard input can be one device's stream only: name - once")
			}
			input = true
		}
		used[device] = name
		f := os.Stdin
		if name != "-" {
			if f, err = os.Open(name); err != nil {
				return list, fmt.Errorf("read a stream: %w", err)
			}
		}
		src := &fileSource{dev: uint8(device), file: f, len: -1}
		if info, e := f.Stat(); e == nil && info.Mode().IsRegular() {
			src.len = info.Size()
		} else if e == nil && info.IsDir() {
			_ = f.Close()
			return list, fmt.Errorf("read a stream: %s is a directory: name a file", name)
		}
		list = append(list, src)
	}
	return list, nil
}

func (f *fileSource) device() uint8 { return f.dev }
func (f *fileSource) close() error  { return f.file.Close() }
func (f *fileSource) size() int64   { return f.len }
func (f *fileSource) whole() bool   { return f.len >= 0 }

// next fills the whole block as long as there is data. A pipe that falls silent does not keep what it has said from being sent, and an
// interrupted one's stream ends properly, with what has been read of it.
func (f *fileSource) next(ctx context.Context, buf []byte) (int, error) {
	if f.len < 0 {
		if f.pipe == nil {
			f.pipe = newPump(f.file)
		}
		return f.pipe.next(ctx, buf)
	}
	n, err := io.ReadFull(f.file, buf)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = io.EOF
	}
	return n, err
}

const (
	// pumpPiece is how much is read of a pipe at once, at most, and pumpPieces how many such pieces may wait.
	pumpPiece  = 64 << 10
	pumpPieces = 2
	// pumpGather is how long data of a pipe waits for more that would go in the same block.
	pumpGather = 20 * time.Millisecond
)

// pump reads aside, since a read of a silent pipe or terminal cannot be interrupted.
type pump struct {
	full, empty chan []byte // all pieces that were read are in full at once: there is room for each
	rest        []byte      // of the piece in use
	piece       []byte
	err         error // why nothing comes any more; ordered by full's closing
}

func newPump(r io.Reader) *pump {
	p := &pump{full: make(chan []byte, pumpPieces), empty: make(chan []byte, pumpPieces)}
	for range pumpPieces {
		p.empty <- make([]byte, pumpPiece)
	}
	go func() {
		defer close(p.full)
		for piece := range p.empty {
			n, err := r.Read(piece)
			if n > 0 {
				p.full <- piece[:n]
			} else {
				p.empty <- piece
			}
			if err != nil {
				p.err = err
				return
			}
		}
	}()
	return p
}

// next fills buf. It comes back with less once pumpGather has passed since its first byte.
func (p *pump) next(ctx context.Context, buf []byte) (n int, err error) {
	var late <-chan time.Time
	for {
		m := copy(buf[n:], p.rest)
		n, p.rest = n+m, p.rest[m:]
		if n == len(buf) {
			return n, nil
		}
		if n > 0 && late == nil {
			timer := time.NewTimer(pumpGather)
			defer timer.Stop()
			late = timer.C
		}
		if p.piece != nil {
			p.empty <- p.piece[:pumpPiece]
			p.piece = nil
		}
		ok := true
		select {
		case p.piece, ok = <-p.full:
		case <-late:
			return n, nil
		case <-ctx.Done():
			select {
			case p.piece, ok = <-p.full: // what has been read is sent
			default:
				return n, io.EOF
			}
		}
		if p.rest = p.piece; !ok {
			return n, p.err
		}
	}
}

// camera makes frames of a pattern that tells camera, frame and place, at a fixed rate.
type camera struct {
	dev    uint8
	frame  int // bytes of a frame
	period time.Duration
	frames int           // how many; 0: until ctx ends
	offset time.Duration // of the first frame, from the first call of next on
	start  time.Time

	done int // frames begun
	left int // bytes of the present one that are to come
}

func (c *camera) device() uint8 { return c.dev }
func (c *camera) close() error  { return nil }
func (c *camera) whole() bool   { return false }

func (c *camera) size() int64 {
	if c.frames == 0 {
		return -1
	}
	return int64(c.frames) * int64(c.frame)
}

func (c *camera) next(ctx context.Context, buf []byte) (int, error) {
	if c.start.IsZero() {
		c.start = time.Now().Add(c.offset)
	}
	if c.left == 0 {
		if c.frames > 0 && c.done == c.frames {
			return 0, io.EOF
		}
		if err := sleepUntil(ctx, c.start.Add(time.Duration(c.done)*c.period)); err != nil {
			return 0, io.EOF // an interrupted camera ends its stream properly
		}
		c.done++
		c.left = c.frame
	}
	n := min(len(buf), c.left)
	paint(buf[:n], c.dev, c.done-1, c.frame-c.left)
	c.left -= n
	return n, nil
}

func sleepUntil(ctx context.Context, t time.Time) error {
	d := time.Until(t)
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// paint writes the bytes of a frame from offset at on: 8-byte words that differ everywhere, cheaply.
func paint(b []byte, dev uint8, frame, at int) {
	const golden = 0x9e3779b97f4a7c15 // 2^64 by the golden ratio: its multiples spread over all words
	seed := (uint64(dev)<<32 | uint64(uint32(frame))) * golden
	i := 0
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], seed+uint64(at+i)*golden)
	}
	for ; i < len(b); i++ {
		b[i] = byte(seed>>56) + byte(at+i)
	}
}

// frameSize reads "640x480x3": the product is the bytes of a frame.
func frameSize(text string) (int, error) {
	const most = 256 << 20
	n := 1
	for _, part := range strings.Split(text, "x") {
		k, err := strconv.Atoi(part)
		if err != nil || k < 1 || n > most/k {
			return 0, cli.Usagef("%q is no frame: write it as 640x480x3 (width, height, bytes a pixel), %s at most", text, cli.FormatSize(most))
		}
		n *= k
	}
	return n, nil
}
