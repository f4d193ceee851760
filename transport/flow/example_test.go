package flow_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

func newLayer(link *loopback.Link, i int) *flow.Layer {
	dev, err := roce.New(link.Port(i)) // on a real interface: roce.Open("eth0")
	if err != nil {
		log.Fatal(err)
	}
	l, err := flow.NewLayer(dev, flow.LayerConfig{})
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// connect returns a sender of layer a and its receiver at layer b.
func connect(a, b *flow.Layer, name string, class, size int) (*flow.Sender, *flow.Receiver) {
	ctx := context.Background()
	l, err := b.Listen(netip.MustParseAddrPort("10.77.0.2:0"),
		flow.ReceiverConfig{Channel: flow.ChannelConfig{Name: name, Size: size}})
	if err != nil {
		log.Fatal(err)
	}
	accepted := make(chan *flow.Receiver)
	go func() {
		r, err := l.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		accepted <- r
	}()
	s, err := a.Dial(ctx, l.Addr(), flow.SenderConfig{Name: name, Class: class})
	if err != nil {
		log.Fatal(err)
	}
	r := <-accepted
	if err := l.Close(); err != nil {
		log.Fatal(err)
	}
	return s, r
}

// A message is sent and received without a scheduler.
func Example() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	a, b := newLayer(link, 0), newLayer(link, 1)
	s, r := connect(a, b, "greeting", 0, 100)

	ctx := context.Background()
	mr, err := a.Alloc(100)
	if err != nil {
		log.Fatal(err)
	}
	n := copy(mr.Bytes(), "hello")
	if err := s.Send(ctx, mr, 0, n); err != nil {
		log.Fatal(err)
	}
	m, err := r.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", m.Data)
	m.Release()
	// Output:
	// hello
}

// A camera's frames are sent in parts with a low priority, brake commands with a high one. At the
// other side, tasks are activated by what arrives.
func ExampleScheduler() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	a, b := newLayer(link, 0), newLayer(link, 1)
	toFrames, frames := connect(a, b, "frames", 1, 1<<20)
	toBrakes, brakes := connect(a, b, "brakes", 7, 8)

	// The sending side.
	s, err := flow.NewScheduler(flow.SchedulerConfig{Layers: []*flow.Layer{a}})
	if err != nil {
		log.Fatal(err)
	}
	camera, err := a.NewChannel(flow.ChannelConfig{Name: "camera", Size: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	pedal, err := a.NewChannel(flow.ChannelConfig{Name: "pedal", Size: 8})
	if err != nil {
		log.Fatal(err)
	}
	for _, c := range []flow.SendConfig{
		{Name: "send frames", Priority: 1, Channel: camera, To: toFrames, Part: 64 << 10,
			MaxAge: time.Second},
		{Name: "send brakes", Priority: 7, Channel: pedal, To: toBrakes, Deadline: time.Second},
	} {
		if _, err := s.SendTask(c); err != nil {
			log.Fatal(err)
		}
	}
	if err := s.Start(); err != nil {
		log.Fatal(err)
	}

	// The receiving side.
	t, err := flow.NewScheduler(flow.SchedulerConfig{Layers: []*flow.Layer{b}})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan string)
	_, err = t.Task(flow.TaskConfig{
		Name: "control", Priority: 7,
		// Both are needed; the task could also have a timer that is Final.
		Inputs: []flow.Input{{Channel: frames.Channel()}, {Channel: brakes.Channel()}},
		Run: func(r *flow.Run) {
			frame, brake := r.Next(0), r.Next(1)
			done <- fmt.Sprintf("frame of %d bytes, brake %s", len(frame.Data), brake.Data)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := t.Start(); err != nil {
		log.Fatal(err)
	}

	frame, err := camera.Reserve() // the camera writes to registered memory
	if err != nil {
		log.Fatal(err)
	}
	if err := camera.Push(frame, len(frame.Data)); err != nil {
		log.Fatal(err)
	}
	if err := pedal.Write([]byte("full")); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-done)
	// Output:
	// frame of 1048576 bytes, brake full
}

// A brake command of 64 bytes waits for a video frame, unless the frame is sent in parts.
func ExampleAdmit() {
	link := flow.Link{Rate: 978e6, Gap: 11 * time.Microsecond}
	brake := flow.Flow{Name: "brake", Priority: 7, Size: 64, Period: time.Millisecond,
		Deadline: 500 * time.Microsecond}
	video := flow.Flow{Name: "video", Priority: 1, Size: 1 << 20, Period: 33 * time.Millisecond}
	_, err := flow.Admit(link, []flow.Flow{brake, video})
	var a *flow.AdmitError
	if errors.As(err, &a) {
		fmt.Println(a.Misfits[0].Flow, "takes up to", a.Misfits[0].Bound)
	}

	video.Part = 16 << 10
	bounds, err := flow.Admit(link, []flow.Flow{brake, video})
	fmt.Println(bounds[0].Flow, "takes up to", bounds[0].Bound, err)
	// Output:
	// brake takes up to 9.28888ms
	// brake takes up to 169.436µs <nil>
}
