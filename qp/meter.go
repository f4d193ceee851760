package qp

// MaxMeters is the number of QPs whose traffic is metered: the QPs that exist, in the order of
// their creation, until the meters are used up. With very many QPs, another cache line per message
// would cost more than the meters are worth.
const MaxMeters = maxMeter - 1

const (
	maxMeter   = 1024
	meterChunk = 64 // meters that are allocated together
)

// Traffic is what a QP has sent and received since it was created or reset.
type Traffic struct {
	Sent, Rcvd uint64 // payload in bytes, of retransmitted packets, too
	RTTs       RTTHistogram
}

// trafficMeter has the counts of a QP.
type trafficMeter struct {
	sent, rcvd uint64
	rtts       *RTTHistogram // nil until the first round trip: many QPs are idle
}

func (m *trafficMeter) clear() {
	m.sent, m.rcvd = 0, 0
	if m.rtts != nil {
		*m.rtts = RTTHistogram{}
	}
}

func (m *trafficMeter) addRTT(rtt Time) {
	if m.rtts == nil {
		m.rtts = new(RTTHistogram)
	}
	m.rtts.add(rtt)
}

// meters has the meters of an engine. Meter 0 is shared by the QPs that have none of their own, so
// that the data path need not distinguish them.
type meters struct {
	chunks [maxMeter / meterChunk]*[meterChunk]trafficMeter
	used   uint16   // meters that were in use at some time
	free   []uint16 // of these, the ones that are not in use
}

func (m *meters) init() {
	m.chunks[0] = new([meterChunk]trafficMeter)
	m.used = 1
}

// assignMeter gives a new QP a meter, if there is one.
func (q *QP) assignMeter() {
	m := &q.eng.meters
	n := m.used
	switch free := len(m.free); {
	case free > 0:
		n, m.free = m.free[free-1], m.free[:free-1]
	case n == maxMeter:
		return
	default:
		if m.chunks[n/meterChunk] == nil {
			m.chunks[n/meterChunk] = new([meterChunk]trafficMeter)
		}
		m.used++
	}
	q.setFlags(meterMask, uint32(n)<<meterShift)
}

// releaseMeter is called when a QP is destroyed. Its meter has been cleared.
func (q *QP) releaseMeter() {
	if n := q.state.Load() >> meterShift; n != 0 {
		q.eng.meters.free = append(q.eng.meters.free, uint16(n))
		q.setFlags(meterMask, 0)
	}
}

// meter returns the QP's meter.
func (q *QP) meter() *trafficMeter {
	n := q.state.Load() >> meterShift
	return &q.eng.meters.chunks[n/meterChunk%(maxMeter/meterChunk)][n%meterChunk]
}

// countSent counts n bytes of payload.
func (q *QP) countSent(n uint32) {
	q.eng.c.SentBytes += uint64(n)
	q.meter().sent += uint64(n)
}

// Traffic returns the traffic of the QP, or false if it is not metered; see MaxMeters. Only the
// owner may call it.
func (q *QP) Traffic() (Traffic, bool) {
	if q.state.Load()>>meterShift == 0 {
		return Traffic{}, false
	}
	m := q.meter()
	t := Traffic{Sent: m.sent, Rcvd: m.rcvd}
	if m.rtts != nil {
		t.RTTs = *m.rtts
	}
	return t, true
}
