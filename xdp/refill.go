//go:build linux

package xdp

// Limits of the number of receive buffers that the kernel gets.
//
// The kernel uses buffers in the order of the fill ring. If it has all buffers, each frame is
// written to the least recently used memory, which is in no cache; on a veth this reduces the
// bandwidth noticeably. Therefore the kernel gets few buffers while the owner keeps up, taken from
// a stack with the most recently used ones on top. The number doubles when frames accumulate, and
// halves after a long time without.
const (
	// minFill is the number at the beginning. The kernel writes to each of them before it uses one
	// again, and the first use of a page is expensive where the hypervisor keeps its own page
	// tables (docs/performance.md). A burst of frames for more buffers is lost if the owner is not
	// awake, so there are enough for the 128 packets that a QP of rxe has in flight, with two
	// buffers each.
	minFill = 256
	// calmFrames is the number of frames after which the target halves if at no time more than an
	// eighth of it was waiting.
	calmFrames = 1 << 16
)

// refill manages the receive buffers of a queue.
type refill struct {
	spare  []uint32 // indices of buffers that the kernel does not have, the most recently used last
	posted uint32   // buffers that the kernel has, including those in the receive ring
	target uint32   // how many buffers the kernel should have
	peak   uint32   // maximum of waiting frames since frames was 0
	frames uint32
	adapt  bool // false: the kernel always has all buffers
}

func (q *queue) initRefill(adapt bool) {
	q.spare = make([]uint32, 0, q.rxCount)
	for i := q.rxCount; i > 0; i-- {
		q.spare = append(q.spare, i-1)
	}
	q.adapt, q.target = adapt, q.rxCount
	if adapt {
		q.target = min(minFill, q.rxCount)
	}
	q.topUp()
}

// recycle adds a buffer to the spare ones. topUp passes them to the kernel.
func (q *queue) recycle(index uint32) { q.spare = append(q.spare, index) }

// topUp fills the fill ring up to the target.
func (q *queue) topUp() {
	n := min(int(q.target)-int(q.posted), len(q.spare))
	if n <= 0 {
		return
	}
	rest := len(q.spare) - n
	for _, index := range q.spare[rest:] {
		q.fill.put(uint64(index) << q.shift)
	}
	q.spare = q.spare[:rest]
	q.posted += uint32(n)
	q.fill.publish()
}

// taken records that n buffers were taken from the receive ring while waiting frames were in it,
// and adapts the target.
func (q *queue) taken(n, waiting uint32) {
	q.posted -= n
	if !q.adapt {
		return
	}
	q.frames += n
	q.peak = max(q.peak, waiting)
	switch {
	case waiting > q.target/2:
		q.target = min(q.target*2, q.rxCount)
		q.topUp()
	case q.frames < calmFrames:
		return
	case q.peak < q.target/8:
		q.target = max(q.target/2, min(minFill, q.rxCount))
	}
	q.frames, q.peak = 0, 0
}
