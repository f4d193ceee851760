package roce_test

import (
	"fmt"
	"log"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// A log of rare events. Here it contains only warnings and errors; the device is closed because its
// interface disappears.
func ExampleWithLogger() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		Level: slog.LevelWarn,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.MessageKey { // too long for an example
				return slog.Attr{}
			}
			return a
		},
	}))
	h := newHost(link.Port(0), roce.RC, roce.WithLogger(logger))
	if err := link.Port(0).Close(); err != nil {
		log.Fatal(err)
	}
	<-h.dev.Done()
	_ = h.dev.Close() // writes what is left of the log
	// Output:
	// level=ERROR event=DEVICE_FATAL
}

// The trace of a WRITE: its work request, its packets and its completion.
func ExampleQP_Trace() {
	// In virtual time no packet is late and sent again.
	link, err := loopback.NewLink(loopback.Config{Virtual: true})
	if err != nil {
		log.Fatal(err)
	}
	virtual := roce.WithExpert(roce.Expert{Clock: link.Now})
	a := newHost(link.Port(0), roce.RC, virtual)
	b := newHost(link.Port(1), roce.RC, virtual)
	defer a.dev.Close()
	defer b.dev.Close()
	connectHosts(a, b)
	var trace []string
	err = a.qp.Trace(func(e roce.TraceEvent) { // by the goroutine of Drive
		trace = append(trace, fmt.Sprintf("%v %s, %d bytes", e.Kind, e.Op, e.Bytes))
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := a.qp.PostSend(roce.SendWR{
		Op: roce.OpWrite, Flags: roce.Signaled, SGEs: []roce.SGE{a.mr.SGE(0, 1500)},
		RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey(),
	}); err != nil {
		log.Fatal(err)
	}
	if err := loopback.Drive(link, time.Second, func() bool { return a.cq.Len() > 0 },
		a.dev, b.dev); err != nil {
		log.Fatal(err)
	}
	a.cq.Poll(make([]roce.WC, 1))
	fmt.Println(strings.Join(trace, "\n"))
	// Output:
	// post RDMA_WRITE, 1500 bytes
	// sent RC RDMA WRITE Only, 1500 bytes
	// rcvd RC Acknowledge, 0 bytes
	// done RDMA_WRITE, 1500 bytes
}
