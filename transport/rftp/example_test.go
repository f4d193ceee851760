package rftp_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/netip"
	"strings"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// One side sends a text in blocks over a link in memory, the other one stores the blocks where they
// belong.
func Example() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var dev [2]*roce.Device
	for i := range dev {
		if dev[i], err = roce.New(link.Port(i)); err != nil {
			log.Fatal(err)
		}
		defer func() { _ = dev[i].Close() }()
	}
	addr := netip.MustParseAddrPort("10.77.0.2:1919")
	l, err := rftp.Listen(dev[1], addr, rftp.ListenConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	ctx := context.Background()
	stored := make(chan error)
	go func() { stored <- store(ctx, l) }()
	if err := send(ctx, dev[0], addr, strings.Repeat("All work and no play. ", 100_000)); err != nil {
		log.Fatal(err)
	}
	if err := <-stored; err != nil {
		log.Fatal(err)
	}
	// Output: play.txt has 2200000 bytes: All work and no play. All work
}

func send(ctx context.Context, dev *roce.Device, to netip.AddrPort, text string) error {
	c, err := rftp.Dial(ctx, dev, to, rftp.Config{Hold: true})
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	s, err := c.Open(ctx, []byte("play.txt"))
	if err != nil {
		return err
	}
	for off := 0; off < len(text); {
		b, err := s.GetFree(ctx)
		if err != nil {
			return err
		}
		b.Offset, b.Len = uint64(off), copy(b.Data, text[off:])
		off += b.Len
		if err := s.Send(b); err != nil {
			return err
		}
	}
	s.End()
	if err := s.Wait(ctx); err != nil {
		return err
	}
	return c.Finish(ctx)
}

func store(ctx context.Context, l *rftp.Listener) error {
	c, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	var name string
	file := make([]byte, 2_200_000)
	for {
		r, err := c.GetReady(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch r.Kind {
		case rftp.Opened:
			name = string(r.Params)
		case rftp.Data:
			copy(file[r.Block.Offset:], r.Block.Data)
			if err := c.PutFree(r.Block); err != nil {
				return err
			}
		case rftp.Ended:
			fmt.Printf("%s has %d bytes: %s\n", name, len(file), file[:30])
		}
	}
}
