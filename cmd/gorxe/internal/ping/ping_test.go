package ping

import (
	"fmt"
	"strings"
	"testing"
)

// If no ping was answered, the error says what to check; a small ping is not lost because of its
// size.
func TestLost(t *testing.T) {
	for _, c := range []struct {
		sum       Summary
		port, mtu bool
	}{
		{Summary{Bytes: 64, Sent: 2}, true, false},
		{Summary{Bytes: 4096, Sent: 2}, true, true},
		{Summary{Bytes: 4096, Sent: 2, Received: 1}, false, false},
	} {
		text := fmt.Sprint(c.sum.lost())
		if !strings.Contains(text, "not answered") || strings.Contains(text, "4791") != c.port ||
			strings.Contains(text, "path MTU") != c.mtu {
			t.Errorf("%d of %d pings of %d bytes: %s", c.sum.Received, c.sum.Sent, c.sum.Bytes, text)
		}
	}
	if err := (&Summary{Bytes: 64, Sent: 2, Received: 2}).lost(); err != nil {
		t.Error(err)
	}
}
