package sink

import (
	"context"
	"sync"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// answers collects answers into messages. Adding one never waits: the number of answers is bounded
// by that of the entries that the source may announce.
type answers struct {
	mu     sync.Mutex
	ready  chan struct{} // capacity 1: there is a message, or the end
	queue  [][]byte      // messages, of which only the last one is not full
	closed bool
}

func newAnswers() *answers { return &answers{ready: make(chan struct{}, 1)} }

func (q *answers) add(a *record.Answer) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := len(q.queue)
	if n == 0 || len(q.queue[n-1]) > filecopy.MaxMessage-record.MaxAnswer {
		q.queue = append(q.queue, append(make([]byte, 0, filecopy.MaxMessage),
			byte(record.MessageAnswers)))
		n++
	}
	q.queue[n-1] = record.AppendAnswer(q.queue[n-1], a)
	q.wake()
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
			q.mu.Unlock()
			if err := conn.SendMessage(ctx, msg); err != nil {
				return err
			}
		}
	}
}
