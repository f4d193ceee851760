package ping

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/roce"
)

// A host that does not answer ARP is not reported as one whose connection manager is silent.
func TestDialError(t *testing.T) {
	arp := fmt.Errorf("%w: %w (%w)", roce.ErrUnreachable, roce.ErrNoNeighbor,
		context.DeadlineExceeded)
	for _, c := range []struct{ err, want error }{
		{context.DeadlineExceeded, roce.ErrNoAnswer},
		{arp, roce.ErrNoNeighbor},
		{roce.ErrRefused, roce.ErrRefused},
	} {
		if got := dialError(c.err); !errors.Is(got, c.want) {
			t.Errorf("dialError(%v) = %v, want %v", c.err, got, c.want)
		}
	}
}
