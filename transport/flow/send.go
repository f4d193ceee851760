package flow

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/transport/flow/core"
)

// SendConfig describes a task that sends the messages of a channel.
type SendConfig struct {
	Name     string
	Priority int // 0 to MaxPriority, which is the most urgent
	Channel  *Channel
	Mode     Mode    // which messages it sends; each activation sends one
	To       *Sender // a sender serves one task
	// Inputs activate the task. Nil means Channel, so that each message is sent. A timer makes it
	// periodic.
	Inputs []Input
	Any    bool // see TaskConfig

	// Split are the lengths of the parts of a message, which add up to the size of Channel. Between
	// two parts, messages of higher priorities are sent. Part instead gives all parts the same
	// length, except the last one. By default a message has one part.
	Split []int
	Part  int

	// MaxAge is how old a message may be when it is sent; 0 means any age. Check, if not nil,
	// refuses a message with an error. It must be short, because other tasks wait, and must not
	// call methods of this package; do long checks in a task of their own.
	MaxAge time.Duration
	Check  func(m *Message) error

	// Deadline is the time from the activation until the message is in the receiver's memory; 0
	// means none. Retry sends the message again from its first part, after its checks; with the
	// mode Latest it sends the newest message.
	Deadline time.Duration
	OnLate   Action
	Retries  int // of Retry, at least 1

	// Done, if not nil, is triggered when a message is in the receiver's memory, and NotDone when
	// it was refused, dropped or lost.
	Done, NotDone *Source
}

// sending is the part of a task that sends messages.
type sending struct {
	to     *Sender
	reader *Reader
	c      SendConfig
	ends   []int // where parts end, ascending
	msg    *Message
	out    outgoing
}

// SendTask adds a task that sends messages.
func (s *Scheduler) SendTask(c SendConfig) (*Task, error) {
	if c.Channel == nil || c.To == nil {
		return nil, fmt.Errorf("%w: task %q needs a channel and a sender", ErrConfig, c.Name)
	}
	ends, err := splitEnds(fmt.Sprintf("task %q", c.Name), c.Channel.cfg.Size, c.Split, c.Part)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	pool, err := s.checkSend(&c)
	if err != nil {
		return nil, err
	}
	t := &Task{s: s, name: c.Name, pool: pool, sending: &sending{to: c.To, c: c, ends: ends}}
	t.out.remote = -1
	config := core.TaskConfig{Name: c.Name, Pool: pool, Priority: c.Priority, Any: c.Any,
		Deadline: c.Deadline, OnLate: c.OnLate, Retries: c.Retries}
	for _, o := range []*Source{c.Done, c.NotDone} {
		if o != nil {
			config.Outputs = append(config.Outputs, o.id)
		}
	}
	inputs := c.Inputs
	if len(inputs) == 0 {
		inputs = []Input{{Channel: c.Channel, Synchron: true}}
	}
	if t.reader, err = c.Channel.NewReader(c.Mode); err != nil {
		return nil, err
	}
	if err := s.add(t, config, inputs); err != nil {
		return nil, err
	}
	c.To.task = t
	c.To.layer.mu.Lock()
	c.To.source, c.To.used = c.Channel, true
	c.To.layer.mu.Unlock()
	return t, nil
}

// checkSend checks the objects of a sending task and returns its pool.
func (s *Scheduler) checkSend(c *SendConfig) (core.PoolID, error) {
	switch {
	case c.To.layer != c.Channel.layer:
		return 0, fmt.Errorf("%w: task %q: the sender and the channel %q belong to different layers",
			ErrConfig, c.Name, c.Channel.cfg.Name)
	case c.To.task != nil:
		return 0, fmt.Errorf("%w: sender %q serves task %q: dial another one for task %q", ErrBusy,
			c.To.cfg.Name, c.To.task.name, c.Name)
	case c.Channel.cfg.Size > c.To.peer.size:
		return 0, fmt.Errorf("%w: task %q: channel %q has messages of %d bytes, and the receiver "+
			"takes %d", ErrTooLong, c.Name, c.Channel.cfg.Name, c.Channel.cfg.Size, c.To.peer.size)
	case c.MaxAge < 0:
		return 0, fmt.Errorf("%w: task %q has the greatest age %v: choose 0 (any) or more",
			ErrConfig, c.Name, c.MaxAge)
	}
	if c.To.busy(c.Channel) {
		return 0, fmt.Errorf("%w: sender %q still sends a message of another channel", ErrBusy,
			c.To.cfg.Name)
	}
	for _, o := range []*Source{c.Done, c.NotDone} {
		if o != nil && (o.s != s || o.tick) {
			return 0, fmt.Errorf("%w: task %q: Done and NotDone must be events of its scheduler",
				ErrConfig, c.Name)
		}
	}
	if err := s.attach(c.Channel); err != nil {
		return 0, err
	}
	for i, l := range s.cfg.Layers {
		if l == c.To.layer {
			return core.PoolID(i + 1), nil
		}
	}
	return 0, fmt.Errorf("%w: task %q: no such layer", ErrConfig, c.Name) // attach has found it
}

// maxParts bounds the parts of a message.
const maxParts = 1 << 16

// splitEnds returns where the parts of a message of size bytes end. name is for errors.
func splitEnds(name string, size int, split []int, part int) (ends []int, err error) {
	switch {
	case len(split) > 0 && part != 0:
		return nil, fmt.Errorf("%w: %s has Split and Part: choose one", ErrConfig, name)
	case part < 0:
		return nil, fmt.Errorf("%w: %s has parts of %d bytes: choose at least 1", ErrConfig, name,
			part)
	case part > 0 && (size-1)/part >= maxParts, len(split) > maxParts:
		return nil, fmt.Errorf("%w: %s has more than %d parts: choose longer ones", ErrConfig, name,
			maxParts)
	case part > 0:
		for at := part; at < size; at += part {
			ends = append(ends, at)
		}
		return append(ends, size), nil
	case len(split) == 0:
		return []int{size}, nil
	}
	sum := 0
	for i, n := range split {
		if n < 1 || n > size {
			return nil, fmt.Errorf("%w: part %d of %s has %d bytes: choose 1 to %d", ErrConfig, i,
				name, n, size)
		}
		sum += n
		ends = append(ends, sum)
	}
	if sum != size {
		return nil, fmt.Errorf("%w: the parts of %s add up to %d bytes, and its messages have %d: "+
			"change the split", ErrConfig, name, sum, size)
	}
	return ends, nil
}

// send posts the next part of a message. The caller holds Scheduler.mu and has taken the task.
func (t *Task) send(now int64, restart bool) {
	if restart {
		t.out.at, t.out.part = 0, 0
	}
	if t.out.at == 0 && !t.begin(now) {
		return
	}
	switch posted, err := t.post(); {
	case err != nil:
		t.stats.Failed++
		t.refuse(now, Failed, err)
	case !posted:
		t.s.m.Free(t.id)
		t.s.m.Park(now, t.id)
	case t.out.at < t.out.n:
		t.s.m.Requeue(now, t.id)
	}
}

// begin chooses and checks the message to send. It returns false if the activation ends.
func (t *Task) begin(now int64) bool {
	if t.c.Mode == Latest {
		t.abandon() // there may be a newer one
	}
	if t.msg == nil {
		t.msg = t.reader.Next()
	}
	if t.msg == nil {
		t.stats.Empty++
		t.end(now)
		return false
	}
	if err := t.check(now); err != nil {
		t.stats.Refused++
		t.refuse(now, Refused, err)
		return false
	}
	return true
}

// check applies the checks before a message is sent.
func (t *Task) check(now int64) error {
	if age := time.Duration(now - t.msg.Time); t.c.MaxAge > 0 && age > t.c.MaxAge {
		return fmt.Errorf("%w: %v, at most %v", ErrStale, age, t.c.MaxAge)
	}
	if t.c.Check != nil {
		return t.c.Check(t.msg)
	}
	return nil
}

// post posts the next part. It returns false if the receiver has no free slot.
func (t *Task) post() (bool, error) {
	l, o, m := t.to.layer, &t.out, t.msg
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.to.err != nil {
		return false, t.to.err
	}
	if o.remote < 0 && t.to.free == 0 {
		return false, nil
	}
	if o.at == 0 {
		o.mr, o.off, o.n, o.local = m.ch.mr, m.ch.offset(int(m.slot)), len(m.Data), int(m.slot)
		o.head = header{seq: m.Seq, time: m.Time, n: len(m.Data)}
	}
	end := min(t.ends[o.part], o.n)
	if err := t.to.post(o, end); err != nil {
		return false, err
	}
	m.ch.slots[m.slot].refs++ // until the part has completed
	return true, nil
}

// sent handles the completion of a message's last part.
func (t *Task) sent(now int64) {
	if err := t.to.Err(); err != nil {
		t.stats.Failed++
		t.s.report(Report{Task: t.name, Kind: Failed, Time: now, Err: err})
		t.signal(now, t.c.NotDone)
	} else {
		t.stats.Sent++
		t.stats.SentBytes += uint64(t.out.n)
		t.signal(now, t.c.Done)
	}
	t.out.remote = -1
	t.abandon()
	t.s.m.Finish(now, t.id)
}

// refuse ends an activation whose message is not sent.
func (t *Task) refuse(now int64, k ReportKind, err error) {
	t.s.report(Report{Task: t.name, Kind: k, Time: now, Err: err})
	t.signal(now, t.c.NotDone)
	t.abandon()
	t.end(now)
}

// end ends an activation without a part in flight.
func (t *Task) end(now int64) {
	t.s.m.Free(t.id)
	t.s.m.Finish(now, t.id)
}

// abandon releases the message. Parts in flight keep their own references, and the next message
// uses the same slot of the receiver.
func (t *Task) abandon() {
	if t.msg != nil {
		t.msg.Release()
	}
	t.msg = nil
	t.out.at, t.out.part = 0, 0
}

func (t *Task) signal(now int64, o *Source) {
	if o != nil {
		t.s.m.Push(now, o.id)
	}
}
