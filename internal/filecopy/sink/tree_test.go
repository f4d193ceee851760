package sink

import (
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// When a directory is ready, the source can be told that its entries are complete. So it must have
// been told before that the directory exists.
func TestEnterAnswersFirst(t *testing.T) {
	for range 100 {
		s := New(nil, Config{DryRun: true})
		n := &node{Dir: s.nodes[0].Child("d"), Entry: record.Entry{Number: 1, Kind: record.Dir},
			parent: s.nodes[0], depth: 1, ready: make(chan struct{})}
		go s.enter(n)
		<-n.ready
		s.answers.mu.Lock()
		if len(s.answers.queue) != 1 {
			t.Fatalf("%d messages with answers, want 1", len(s.answers.queue))
		}
		s.answers.mu.Unlock()
	}
}
