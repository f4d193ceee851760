package deterministic

import "time"

// bulk makes a stream send all the time, with outstanding messages waiting.
func (s *stream) bulk(outstanding int) error {
	then := s.arrived
	s.arrived = func(sent, received int64) {
		if then != nil {
			then(sent, received)
		}
		s.n.fail(s.send())
	}
	for range outstanding {
		if err := s.send(); err != nil {
			return err
		}
	}
	return nil
}

// meter measures the rate of a stream from one arrival to the last one.
type meter struct {
	size        int
	first, last int64 // times of arrivals
	messages    int   // after the first one
}

func (m *meter) arrived(_, received int64) {
	if m.first == 0 {
		m.first = received
		return
	}
	m.last = received
	m.messages++
}

// mbps returns the goodput in Mb/s.
func (m *meter) mbps() float64 {
	if m.messages == 0 {
		return 0
	}
	return float64(m.messages*m.size) * 8e3 / float64(m.last-m.first)
}

// worst is the longest of some times.
type worst struct {
	d time.Duration
	n int
}

func (w *worst) arrived(sent, received int64) {
	w.d = max(w.d, time.Duration(received-sent))
	w.n++
}
