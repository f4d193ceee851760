package bench

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/udpmsg"
)

const (
	runBatch   = 8      // runs per system call
	maxRun     = 64     // packets of a run; kernels before 6.9 have this limit
	maxRunSize = 65_000 // bytes of a run
)

// runs measures runs of UDP packets through sockets. Each packet is as long as gorxe's and ends
// with the CRC-32 of its other bytes, which the receiver checks.
type runs struct {
	*kernel
	size int              // of a packet's UDP payload
	in   *udpmsg.Batch    // received runs
	mem  [runBatch][]byte // their packets
	out  *messages
}

func newRuns(s *spec, iface string, addr netip.Addr) (*runs, error) {
	k, err := newKernel(s, iface, addr)
	if err != nil {
		return nil, err
	}
	r := &runs{kernel: k, size: s.frameSize() - netHeader}
	if s.Active {
		err = unix.SetsockoptInt(k.fd, unix.SOL_UDP, unix.UDP_SEGMENT, r.size)
	} else {
		err = unix.SetsockoptInt(k.fd, unix.SOL_UDP, unix.UDP_GRO, 1)
	}
	if err != nil {
		_ = k.close()
		return nil, fmt.Errorf("runs of UDP packets: %w", err)
	}
	return r, nil
}

func (r *runs) run(peer *hello, ready func(), h *halt) (outcome, error) {
	if err := r.connect(peer); err != nil {
		return outcome{}, err
	}
	if r.spec.Active {
		return outcome{}, r.send(ready, h)
	}
	return r.count(ready, h)
}

// send sends runs as fast as the socket takes them.
func (r *runs) send(ready func(), h *halt) error {
	n := min(maxRun, maxRunSize/r.size)
	r.out = newMessages(runBatch, n*r.size)
	ready()
	return drive(r.spec, h, func() error {
		for p := r.out.data; len(p) > 0; p = p[r.size:] {
			end := r.size - bth.ICRCLen
			binary.LittleEndian.PutUint32(p[end:], crc32.ChecksumIEEE(p[:end]))
		}
		_, err := r.out.send(r.fd)
		if err != nil && !temporary(err) && err != unix.ENOBUFS {
			return fmt.Errorf("send runs: %w", err)
		}
		return nil
	})
}

// count receives until halt is set and nothing is left.
func (r *runs) count(ready func(), h *halt) (outcome, error) {
	r.in = udpmsg.NewBatch()
	for i := range r.mem {
		r.mem[i] = make([]byte, 1<<16)
		r.in.SetMemory(i, 0, r.mem[i])
	}
	ready()
	w := window{warmup: r.spec.Warmup}
	var idle time.Time
	for {
		n, err := r.in.Receive(r.fd, runBatch, true)
		if err != nil && !temporary(err) {
			return outcome{}, fmt.Errorf("receive runs: %w", err)
		}
		packets := 0
		for i := range n {
			packets += r.check(i)
		}
		now := time.Now()
		switch {
		case packets > 0:
			w.add(now, uint64(packets))
			idle = now
		case h.isSet():
			return w.outcome(), nil
		case now.Sub(idle) >= idleSpin:
			p := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(p, int(napTime/time.Millisecond))
			idle = time.Now()
		}
	}
}

// check returns the number of packets of received run i with a correct CRC.
func (r *runs) check(i int) (good int) {
	n, _ := r.in.Length(i)
	for p := r.mem[i][:n]; len(p) >= r.size; p = p[r.size:] {
		end := r.size - bth.ICRCLen
		if binary.LittleEndian.Uint32(p[end:]) == crc32.ChecksumIEEE(p[:end]) {
			good++
		}
	}
	return good
}
