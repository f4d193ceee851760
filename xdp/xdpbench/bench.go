package xdpbench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"golang.org/x/sys/unix"
)

const (
	// Batch is the default number of frames per Send and Receive.
	Batch = 32
	// MinPayload is the length of the sequence number in every frame, bytes.
	MinPayload = 8

	maxBatch = 256
	// drain is how long the receiver waits for missing frames after the sender has stopped.
	drain = 200 * time.Millisecond
	// maxWait limits a single call of Wait.
	maxWait = 50 * time.Millisecond
	// replyPatience is how long PingPong waits for a reply.
	replyPatience = time.Second
	maxRounds     = 1 << 24
	hopLimit      = 64
)

// ErrLost means that a frame of PingPong did not come back within a second.
var ErrLost = errors.New("no reply to a frame")

// runs numbers the measurements, so that late frames of one are not counted in the next.
var runs atomic.Uint64

// End is one side of a measurement.
type End struct {
	Port driver.Port
	Addr netip.Addr // address in the IP header; both sides need the same IP version
	CPU  int        // CPU to which the thread is pinned; negative = not pinned
}

// frameTemplate is a complete frame. write copies it and sets the sequence number.
type frameTemplate struct {
	frame []byte
	seqAt int
}

func (t *frameTemplate) write(b []byte, seq uint64) []byte {
	b = b[:copy(b, t.frame)]
	binary.LittleEndian.PutUint64(b[t.seqAt:], seq)
	return b
}

// newTemplate builds the frame. seqAt is the offset of its payload.
func newTemplate(from, to End, payload int) (t frameTemplate, seqAt int, err error) {
	if from.Addr.Is4() != to.Addr.Is4() {
		return t, 0, fmt.Errorf("addresses %v and %v are of different IP versions", from.Addr,
			to.Addr)
	}
	header := make([]byte, bth.MaxNetHeader)
	seqAt = frame.PutHeaders(header, &frame.Address{
		SrcMAC: from.Port.Info().MAC, DstMAC: to.Port.Info().MAC,
		Src: bth.GIDFromAddr(from.Addr), Dst: bth.GIDFromAddr(to.Addr),
		SrcPort: frame.SourcePort(1, 1), HopLimit: hopLimit,
	})
	most := min(from.Port.Info().MaxFrame, to.Port.Info().MaxFrame) - seqAt
	if payload < MinPayload || payload > most {
		return t, 0, fmt.Errorf("payload of %d bytes, want %d to %d", payload, MinPayload, most)
	}
	t = frameTemplate{frame: append(header[:seqAt:seqAt], make([]byte, payload)...), seqAt: seqAt}
	for i := range payload {
		t.frame[seqAt+i] = byte(i)
	}
	var e frame.Encoder
	// This sets lengths and the IP checksum. The ICRC becomes wrong when write sets the number.
	e.Finish(t.frame, seqAt)
	return t, seqAt, nil
}

// runThread runs f on a separate thread.
func runThread(cpu int, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- onThread(cpu, nil, f) }()
	return <-done
}

// onThread runs f on a locked thread. A pinned thread ends with its goroutine. If used is not nil,
// it receives the CPU time.
func onThread(cpu int, used *time.Duration, f func() error) error {
	runtime.LockOSThread()
	if cpu >= 0 {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(0, &set); err != nil {
			return fmt.Errorf("pin thread to CPU %d: %w", cpu, err)
		}
	} else {
		defer runtime.UnlockOSThread()
	}
	before := threadTime()
	err := f()
	if used != nil {
		*used = threadTime() - before
	}
	return err
}

// threadTime returns the CPU time of the calling thread, user and kernel.
func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
