package sink

import (
	"context"
	"sync"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// maxUnread is the number of answers to entries that a source may leave unread. One that reads them
// has fewer: two of each entry that it has announced.
const maxUnread = 2 * maxPending

// answers collects answers into messages. Adding one never waits: the sink ends the transfer if too
// many are unread.
type answers struct {
	mu     sync.Mutex
	ready  chan struct{} // capacity 1: there is a message, or the end
	queue  []answerMessage
	unread int // answers to entries in the queue
	closed bool
}

// answerMessage is a message to the source. Only the last one of the queue is not full.
type answerMessage struct {
	text    []byte
	entries int // answers to entries
}

func newAnswers() *answers { return &answers{ready: make(chan struct{}, 1)} }

func (q *answers) add(a *record.Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.queue)
	if n == 0 || len(q.queue[n-1].text) > filecopy.MaxMessage-record.MaxAnswer {
		q.queue = append(q.queue, answerMessage{text: append(make([]byte, 0, filecopy.MaxMessage),
			byte(record.MessageAnswers))})
		n++
	}
	m := &q.queue[n-1]
	m.text = record.AppendAnswer(m.text, a)
	if a.Verdict != record.Deleted { // the sink has announced that one
		m.entries++
		q.unread++
	}
	q.wake()
}

// tooMany reports whether the source does not read its answers.
func (q *answers) tooMany() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.unread > maxUnread
}

// close ends run when all answers are sent.
func (q *answers) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.wake()
}

func (q *answers) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// run sends messages until close.
func (q *answers) run(ctx context.Context, conn filecopy.Conn) error {
	for {
		select {
		case <-q.ready:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		for {
			q.mu.Lock()
			if len(q.queue) == 0 {
				closed := q.closed
				q.mu.Unlock()
				if closed {
					return nil
				}
				break
			}
			msg := q.queue[0]
			q.queue = q.queue[1:]
			q.unread -= msg.entries
			q.mu.Unlock()
			if err := conn.SendMessage(ctx, msg.text); err != nil {
				return err
			}
		}
	}
}
