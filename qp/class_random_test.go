package qp

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// classModel decides in the simplest way which QP sends next. It describes UC QPs, which are never
// blocked.
type classModel struct {
	configs    classConfigs
	qps        []*modelQP
	rings      [NumClasses][]*modelQP // QPs with packets that wait for their turn, RoundRobin
	serving    [NumClasses]*modelQP
	left       [NumClasses]int // of the quantum of serving
	holding    *modelQP
	part       int // bytes since the last preemption point
	stamps     int
	backlogged bool
}

type modelQP struct {
	q        *QP
	name     string
	class    uint8
	messages []modelMessage
	fresh    bool // FIFO: queued although it never had packets
}

type modelMessage struct {
	stamp, left int // bytes
	started     bool
}

func (m *classModel) fifo(c uint8) bool { return m.configs[c].Order == FIFO }

// used returns the classes of all QPs, a bit set.
func (m *classModel) used() (b uint8) {
	for _, q := range m.qps {
		b |= 1 << q.class
	}
	return b
}

func (m *classModel) classed() bool { return m.fifo(0) || m.used() > 1 }

func (m *classModel) post(q *modelQP, n int) {
	m.stamps++
	q.messages = append(q.messages, modelMessage{stamp: m.stamps, left: n})
	m.queue(q)
}

func (m *classModel) queue(q *modelQP) {
	c := q.class
	switch {
	case m.fifo(c):
		q.fresh = len(q.messages) == 0
	case m.serving[c] != q && !slices.Contains(m.rings[c], q):
		m.rings[c] = append(m.rings[c], q)
	}
}

// discard removes QPs without packets from the classes from the highest one to low that may send. A
// QP that was created is queued although it has none.
func (m *classModel) discard(low uint8) {
	for _, q := range m.qps {
		if q.class >= low && m.maySend(q.class) {
			q.fresh = false
		}
	}
	for c := uint8(NumClasses); c > low; {
		c--
		for len(m.rings[c]) > 0 && m.serving[c] == nil && len(m.rings[c][0].messages) == 0 &&
			m.maySend(c) {
			m.rings[c] = m.rings[c][1:]
		}
	}
}

func (m *classModel) maySend(c uint8) bool {
	return !m.backlogged || int(c) == bits.Len8(m.used())-1
}

// unqueue removes q from its class.
func (m *classModel) unqueue(q *modelQP) {
	c := q.class
	m.rings[c] = slices.DeleteFunc(m.rings[c], func(o *modelQP) bool { return o == q })
	if m.serving[c] == q {
		m.serving[c] = nil
	}
	if m.holding == q {
		m.holding, m.part = nil, 0
	}
}

func (m *classModel) move(q *modelQP, c uint8) {
	if c == q.class {
		return
	}
	before := m.classed()
	if m.fifo(c) && !m.fifo(q.class) {
		for i := range q.messages {
			if w := &q.messages[i]; w.started {
				w.stamp = 0
			} else {
				m.stamps++
				w.stamp = m.stamps
			}
		}
	}
	queued := len(q.messages) > 0 || m.isQueued(q)
	m.unqueue(q)
	q.fresh = false
	if q.class = c; queued {
		m.queue(q)
	}
	m.switched(before)
}

func (m *classModel) isQueued(q *modelQP) bool {
	return q.fresh || slices.Contains(m.rings[q.class], q)
}

// switched is called after changes of the classes that QPs have.
func (m *classModel) switched(before bool) {
	if before && !m.classed() {
		m.holding, m.part, m.backlogged = nil, 0, false
	}
}

// candidates returns the QPs of which one must send next.
func (m *classModel) candidates() (qs []*modelQP) {
	if q := m.holding; q != nil {
		if !m.maySend(q.class) {
			return nil
		}
		return []*modelQP{q}
	}
	for c := uint8(NumClasses); c > 0; {
		if c--; !m.maySend(c) {
			continue
		}
		if q := m.serving[c]; q != nil {
			return []*modelQP{q}
		}
		for _, q := range m.rings[c] {
			if len(q.messages) > 0 {
				return []*modelQP{q}
			}
		}
		for _, q := range m.qps {
			if q.class != c || !m.fifo(c) || len(q.messages) == 0 {
				continue
			}
			if len(qs) > 0 && q.messages[0].stamp != qs[0].messages[0].stamp {
				if q.messages[0].stamp > qs[0].messages[0].stamp {
					continue
				}
				qs = nil
			}
			qs = append(qs, q)
		}
		if len(qs) > 0 {
			return qs
		}
	}
	return nil
}

// sent records that q sends a packet of n bytes.
func (m *classModel) sent(q *modelQP, n int) {
	c := q.class
	if m.holding == nil {
		m.discard(c)
	}
	if !m.fifo(c) && m.serving[c] != q {
		m.rings[c] = m.rings[c][1:]
		m.serving[c], m.left[c] = q, quantum
	}
	w := &q.messages[0]
	payload := min(w.left, 1024)
	w.left -= payload
	w.started = true
	m.part += payload
	p := m.configs[c].Preempt
	point := w.left == 0 || p == 0 || (p > 0 && m.part >= p) || !m.classed()
	if m.holding = q; point {
		m.holding, m.part = nil, 0
	}
	if w.left == 0 {
		q.messages = q.messages[1:]
	}
	switch {
	case len(q.messages) == 0:
		m.serving[c] = nil
	case m.fifo(c):
	case n < m.left[c]:
		m.left[c] -= n
	case point:
		m.serving[c] = nil
		m.queue(q)
	default:
		m.left[c] = 0
	}
}

func TestClassesRandom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		var configs classConfigs
		for i := range configs {
			configs[i].Order = Order(rapid.IntRange(0, 1).Draw(r, "order"))
			configs[i].Preempt = rapid.SampledFrom([]int{0, 0, PreemptAtEnd, 1, 3000,
				20_000}).Draw(r,
				"preempt")
		}
		c := newClassWorld(t, configs)
		m := &classModel{configs: configs}
		e := c.ends[0]
		class := rapid.Custom(func(t *rapid.T) uint8 {
			if rapid.Bool().Draw(t, "default") {
				return 0
			}
			return rapid.Uint8Range(0, 7).Draw(t, "class")
		})
		created := 0
		create := func() {
			name := fmt.Sprint("q", created)
			created++
			q := &modelQP{name: name}
			m.qps = append(m.qps, q)
			m.queue(q)
			to := class.Draw(r, "class")
			q.q = c.pair(name, UC, to)
			m.move(q, to)
		}
		create()
		draw := func() *modelQP { return rapid.SampledFrom(m.qps).Draw(r, "qp") }
		send := func() {
			want := m.candidates()
			p, got := c.one()
			if p == nil {
				if want != nil {
					r.Fatalf("nothing sent, want a packet of %s", want[0].name)
				}
				if m.holding == nil {
					m.discard(0)
				}
				return
			}
			for _, q := range want {
				if q.name == got {
					n := len(p.Payload) + int(p.Info.HeaderLen) + int(p.BTH.PadCount()) + q.q.path.HeaderLen()
					m.sent(q, n)
					return
				}
			}
			r.Fatalf("sent a packet of %s, want one of %v", got, want)
		}
		r.Repeat(map[string]func(*rapid.T){
			"create": func(*rapid.T) {
				if len(m.qps) < 8 {
					create()
				}
			},
			"destroy": func(r *rapid.T) {
				if len(m.qps) > 1 {
					q, before := draw(), m.classed()
					m.unqueue(q)
					m.qps = slices.DeleteFunc(m.qps, func(o *modelQP) bool { return o == q })
					m.switched(before)
					e.DestroyQP(q.q)
				}
			},
			"post": func(r *rapid.T) {
				q := draw()
				if q.q.SQLen() > 100 {
					return
				}
				n := rapid.SampledFrom([]int{0, 1, 1024, 1025, 5000, 20_000, 50_000}).Draw(r,
					"length")
				m.post(q, n)
				c.write(q.q, n)
			},
			"class": func(r *rapid.T) {
				q, to := draw(), class.Draw(r, "to")
				m.move(q, to)
				must(t, q.q.Modify(c.now, &Attr{Class: to}, AttrClass))
			},
			"backlog": func(r *rapid.T) {
				b := rapid.Bool().Draw(r, "backlogged")
				e.SetBacklogged(b)
				m.backlogged = b && m.classed()
			},
			"send": func(*rapid.T) { send() },
			"sends": func(*rapid.T) {
				for range 20 {
					send()
				}
			},
			"": func(*rapid.T) {
				if m.classed() != e.classed || m.used() != e.used {
					r.Fatalf("classed %v, used %b, want %v, %b", e.classed, e.used, m.classed(),
						m.used())
				}
				c.wire = c.wire[:0]
				c.collect()
				if m.candidates() != nil {
					return
				}
				if m.holding == nil {
					m.discard(0)
				}
				if p, name := c.one(); p != nil || !e.Idle() {
					r.Fatalf("sent a packet of %q, Idle() = %v, want neither", name, e.Idle())
				}
			},
		})
		e.SetBacklogged(false)
		m.backlogged = false
		for m.candidates() != nil {
			send()
		}
		if c.sends(1, ""); !e.Idle() {
			r.Fatal("Idle() = false although nothing is left")
		}
	})
}
