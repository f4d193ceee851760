package xdp

// How many buffers the kernel gets to receive into.
//
// The kernel uses them in the order of the fill ring, so with all of them on it every frame lands in the memory that
// was used longest ago, which has left the processor's caches: with 2048 buffers that cost up to a third of the
// bandwidth on a veth, with 512 less than a tenth. So the ring holds few as long as the owner keeps up, taken from a stack whose
// top was used last. When frames pile up the number doubles, up to all; after a long calm it halves.
const (
	startFill = 1024
	minFill   = 512 // at two buffers a frame, one queue pair's window
	// calmFrames is how many frames have to pass without a pile of an eighth of the number.
	calmFrames = 1 << 16
)

// refill holds a queue's receive buffers that the kernel does not have.
type refill struct {
	spare  []uint32 // indices of buffers; the last is the warmest
	posted uint32   // buffers that the kernel has, filled ones that wait in the receive ring included
	want   uint32   // how many it shall have
	pile   uint32   // most frames found waiting since frames was 0
	frames uint32
	adapt  bool // else the kernel has all, always
}

func (q *queue) initRefill(adapt bool) {
	q.spare = make([]uint32, 0, q.rxCount)
	for i := q.rxCount; i > 0; i-- {
		q.spare = append(q.spare, i-1)
	}
	q.adapt, q.want = adapt, q.rxCount
	if adapt {
		q.want = min(startFill, q.rxCount)
	}
	q.topUp()
}

// giveBack takes back a receive buffer. topUp makes use of it.
func (q *queue) giveBack(index uint32) { q.spare = append(q.spare, index) }

// topUp brings the fill ring to its number.
func (q *queue) topUp() {
	n := min(int(q.want)-int(q.posted), len(q.spare))
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

// taken counts n buffers that came out of the receive ring while pile frames waited there, and adapts.
func (q *queue) taken(n, pile uint32) {
	q.posted -= n
	if !q.adapt {
		return
	}
	q.frames += n
	q.pile = max(q.pile, pile)
	switch {
	case pile > q.want/2:
		q.want = min(q.want*2, q.rxCount)
		q.topUp()
	case q.frames < calmFrames:
		return
	case q.pile < q.want/8:
		q.want = max(q.want/2, min(minFill, q.rxCount))
	}
	q.frames, q.pile = 0, 0
}
