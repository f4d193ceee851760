package indirect

import (
	"bytes"
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// A transfer whose answer comes goes straight to its destination.
func TestDirect(t *testing.T) {
	a, b := newPair(t, loopback.Plan{}, Config{}, Config{})
	want := fill(a.mr.Bytes()[:128<<10], 1)
	if err := a.conn.Write(t.Context(), a.mr, 0, 128<<10, 4096); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.mr.Bytes()[4096:][:128<<10], want) {
		t.Error("data differs")
	}
	if c := a.conn.Counters(); c.Direct != 1 || c.Indirect != 0 {
		t.Errorf("%+v", c)
	}
}
