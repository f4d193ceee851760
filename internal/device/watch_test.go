package device

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// The user of a command sees what happens to the port.
func TestReportEvents(t *testing.T) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dev, err := roce.New(link.Port(0))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		reportEvents(&out, dev)
	}()
	link.Port(0).SetUp(false)
	for dev.Info().Up { // the event follows before Close
		dev.Progress()
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	<-reported
	if !strings.Contains(out.String(), ": the link is down\n") {
		t.Errorf("output %q, want that the link is down", &out)
	}
}
