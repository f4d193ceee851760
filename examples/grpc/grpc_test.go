package grpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket"
)

// The service echo returns what it gets: one message, or each message of a stream.
const (
	unaryMethod  = "/echo/Unary"
	streamMethod = "/echo/Stream"
)

var echo = grpc.ServiceDesc{
	ServiceName: "echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{MethodName: "Unary", Handler: func(_ any, _ context.Context,
		decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		var m wrapperspb.BytesValue
		return &m, decode(&m)
	}}},
	Streams: []grpc.StreamDesc{{StreamName: "Stream", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, s grpc.ServerStream) error {
			for {
				var m wrapperspb.BytesValue
				if err := s.RecvMsg(&m); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				if err := s.SendMsg(&m); err != nil {
					return err
				}
			}
		}}},
}

// newClient starts a server on one device and returns a client on the other one.
func newClient() (c *grpc.ClientConn, stop func(), err error) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		return nil, nil, err
	}
	var devs [2]*roce.Device
	for i := range devs {
		if devs[i], err = roce.New(link.Port(i)); err != nil {
			return nil, nil, err
		}
	}
	l, err := rsocket.Listen(devs[1], ":50051", rsocket.Config{})
	if err != nil {
		return nil, nil, err
	}
	s := grpc.NewServer()
	s.RegisterService(&echo, nil)
	served := make(chan struct{})
	go func() {
		_ = s.Serve(l) // ends with Stop
		close(served)
	}()
	d := rsocket.Dialer{Device: devs[0]}
	c, err = grpc.NewClient("passthrough:///"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", addr)
		}))
	return c, func() {
		_ = c.Close()
		s.Stop()
		<-served
		for _, d := range devs {
			_ = d.Close()
		}
	}, err
}

func TestGRPC(t *testing.T) {
	c, stop, err := newClient()
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	const size = 3 << 20
	var answer wrapperspb.BytesValue
	ask := wrapperspb.Bytes(bytes.Repeat([]byte("gRPC"), size/4))
	if err := c.Invoke(ctx, unaryMethod, ask, &answer); err != nil ||
		!bytes.Equal(answer.Value, ask.Value) {
		t.Fatalf("Invoke() = %v, with %d bytes; want %d as sent", err, len(answer.Value), size)
	}

	s, err := c.NewStream(ctx, &echo.Streams[0], streamMethod)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		ask.Value = ask.Value[:1000*i]
		if err := s.SendMsg(ask); err != nil {
			t.Fatal(err)
		}
		if err := s.RecvMsg(&answer); err != nil || !bytes.Equal(answer.Value, ask.Value) {
			t.Fatalf("RecvMsg() = %v, with %d bytes; want %d as sent", err, len(answer.Value),
				len(ask.Value))
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := s.RecvMsg(&answer); !errors.Is(err, io.EOF) {
		t.Errorf("RecvMsg() after the end of the stream = %v, want EOF", err)
	}
}

func Example() {
	c, stop, err := newClient()
	if err != nil {
		log.Fatal(err)
	}
	defer stop()
	var answer wrapperspb.BytesValue
	err = c.Invoke(context.Background(), unaryMethod, wrapperspb.Bytes([]byte("hello")), &answer)
	fmt.Println(string(answer.Value), err)
	// Output: hello <nil>
}
