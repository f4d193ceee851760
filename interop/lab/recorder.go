package lab

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"golang.org/x/sys/unix"
)

// Limits of the recorder.
const (
	recorderBytes = 48 << 20 // complete frames kept; the oldest are dropped first
	recorderSlack = 8 << 20  // socket buffer
	maxFrame      = 1 << 16
)

// Recorder keeps the recent frames that crossed the cable between gorxe and the bridge in memory. A
// pcap is written only on request.
type Recorder struct {
	fd int

	mu      sync.Mutex
	frames  []recorded // a queue: frames[first:] are kept
	first   int
	bytes   int
	dropped int
	seen    int // since the start

	done chan struct{}
	once sync.Once
}

type recorded struct {
	at   time.Time
	data []byte
}

// newRecorder listens on iface in the calling thread's namespace.
func newRecorder(index int) (*Recorder, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("lab: open a packet socket: %w", err)
	}
	// A larger buffer and the kernel's time stamps improve the record but are optional.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, recorderSlack)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
	all := uint16(unix.ETH_P_ALL)
	if err := unix.Bind(fd,
		&unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: index}); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: listen on interface %d: %w", index, err),
			unix.Close(fd))
	}
	r := &Recorder{fd: fd, done: make(chan struct{})}
	go r.run()
	return r, nil
}

func (r *Recorder) run() {
	const patience = 200 // ms: how soon it notices that it is closed
	buf, oob := make([]byte, maxFrame), make([]byte, 64)
	for {
		select {
		case <-r.done:
			unix.Close(r.fd)
			return
		default:
		}
		n, oobn, _, _, err := unix.Recvmsg(r.fd, buf, oob, 0)
		if err != nil {
			// The socket is empty, or the interface went down for a moment.
			_, _ = unix.Poll([]unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}, patience)
			continue
		}
		r.keep(stamp(oob[:oobn]), buf[:n])
	}
}

// stamp returns the kernel's time stamp.
func stamp(oob []byte) time.Time {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) == 0 || len(msgs[0].Data) < 16 {
		return time.Now()
	}
	d := msgs[0].Data
	le := func(b []byte) (v int64) {
		for i := 7; i >= 0; i-- {
			v = v<<8 | int64(b[i])
		}
		return v
	}
	return time.Unix(le(d), le(d[8:]))
}

func (r *Recorder) keep(at time.Time, frame []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames = append(r.frames, recorded{at, append([]byte(nil), frame...)})
	r.bytes += len(frame)
	r.seen++
	for r.bytes > recorderBytes {
		r.bytes -= len(r.frames[r.first].data)
		r.frames[r.first].data = nil
		r.first++
		r.dropped++
	}
	if r.first > len(r.frames)/2 {
		r.frames = append(r.frames[:0], r.frames[r.first:]...)
		r.first = 0
	}
}

// Seen returns the number of frames so far.
func (r *Recorder) Seen() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// Reset discards the record.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames, r.first, r.bytes, r.dropped = nil, 0, 0, 0
}

// Dump writes the record as a pcap and returns the number of frames.
func (r *Recorder) Dump(w io.Writer) (int, error) {
	time.Sleep(20 * time.Millisecond) // the latest frames may still be in the socket
	r.mu.Lock()
	frames := r.frames[r.first:]
	r.mu.Unlock()
	p := pcapgo.NewWriterNanos(w)
	if err := p.WriteFileHeader(maxFrame, layers.LinkTypeEthernet); err != nil {
		return 0, err
	}
	for i, f := range frames {
		ci := gopacket.CaptureInfo{Timestamp: f.at, CaptureLength: len(f.data), Length: len(f.data)}
		if err := p.WritePacket(ci, f.data); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

// close stops recording.
func (r *Recorder) close() { r.once.Do(func() { close(r.done) }) }
