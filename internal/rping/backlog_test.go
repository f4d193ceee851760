package rping

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
)

// The listener keeps at least as many unanswered requests as Serve answers at a time. Otherwise a
// few forged requests, whose sources cannot be resolved, would keep all others out.
func TestBacklog(t *testing.T) {
	bed, err := testbed.New(testbed.Config{Link: loopback.Config{Ports: 3}})
	if err != nil {
		t.Fatal(err)
	}
	defer bed.Close()
	s := &Server{Dev: bed.Dev[1]}
	l, err := s.Listen(DefaultPort)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f := testbed.NewForger(bed.Link, 2, 1)
	end := time.Now().Add(20 * time.Second)
	for sent := 0; ; {
		c := bed.Dev[1].Counters()
		if n := c.Get("cm_drop_backlog") + c.Get("cm_drop_source"); n > 0 {
			t.Fatalf("%d of %d requests were dropped, want 0", n, sent)
		}
		got := c.Get("cm_received_req")
		if got == session.MaxConnecting {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("received %d of %d requests", got, sent)
		}
		// Send slowly enough for the receive ring.
		if sent == int(got) && f.REQ(DefaultPort, nil) == nil {
			sent++
		}
		time.Sleep(10 * time.Microsecond)
	}
}
