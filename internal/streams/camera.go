package streams

import (
	"context"
	"encoding/binary"
	"io"
	"time"
)

// Cameras describes synthetic cameras with a fixed frame rate.
type Cameras struct {
	First    int           // device number of the first camera
	Count    int           // number of cameras
	Frame    int           // bytes of a frame
	FPS      int           // frames per second
	Duration time.Duration // 0: until the context ends
}

// Sources returns the cameras. Their frames are spread over the frame period, as if the cameras
// were not synchronized.
func (c *Cameras) Sources() []Source {
	period := time.Second / time.Duration(c.FPS)
	list := make([]Source, c.Count)
	for i := range list {
		list[i] = &camera{
			dev: uint8(c.First + i), frame: c.Frame, period: period,
			frames: frames(c.Duration, period),
			offset: period * time.Duration(i) / time.Duration(c.Count),
		}
	}
	return list
}

// frames returns the number of frames that start within d.
func frames(d, period time.Duration) int { return int((d + period - 1) / period) }

type camera struct {
	dev    uint8
	frame  int // bytes of a frame
	period time.Duration
	frames int           // number of frames; 0: until ctx ends
	offset time.Duration // of the first frame from the first call of next

	start   time.Time // of the first frame
	started int       // frames
	left    int       // bytes of the current frame
}

func (c *camera) device() uint8   { return c.dev }
func (c *camera) close() error    { return nil }
func (c *camera) truncates() bool { return false }

func (c *camera) size() int64 {
	if c.frames == 0 {
		return -1
	}
	return int64(c.frames) * int64(c.frame)
}

// next returns a part of a frame. The end of ctx ends the stream after the current frame.
func (c *camera) next(ctx context.Context, buf []byte) (int, error) {
	if c.start.IsZero() {
		c.start = time.Now().Add(c.offset)
	}
	if c.left == 0 {
		if c.frames > 0 && c.started == c.frames {
			return 0, io.EOF
		}
		if err := sleepUntil(ctx, c.start.Add(time.Duration(c.started)*c.period)); err != nil {
			return 0, io.EOF
		}
		c.started++
		c.left = c.frame
	}
	n := min(len(buf), c.left)
	fillPattern(buf[:n], c.dev, c.started-1, c.frame-c.left)
	c.left -= n
	return n, nil
}

// fillPattern writes the content of a frame from offset at: 8-byte words that differ between
// devices, frames and offsets.
func fillPattern(b []byte, dev uint8, frame, at int) {
	// 2^64 divided by the golden ratio: its multiples are spread evenly.
	const golden = 0x9e3779b97f4a7c15
	seed := (uint64(dev)<<32 | uint64(uint32(frame))) * golden
	i := 0
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], seed+uint64(at+i)*golden)
	}
	for ; i < len(b); i++ {
		b[i] = byte(seed>>56) + byte(at+i)
	}
}

// sleepUntil sleeps until t, or returns an error when ctx ends.
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
