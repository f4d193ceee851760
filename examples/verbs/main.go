// Command verbs is the first program of docs/guide.md: it writes into the memory of another device
// with the verbs API.
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		return err
	}
	alice, err := newSide(link.Port(0))
	if err != nil {
		return err
	}
	defer alice.dev.Close()
	bob, err := newSide(link.Port(1))
	if err != nil {
		return err
	}
	defer bob.dev.Close()
	if err := alice.qp.Connect(ctx, bob.qp.Local(), roce.ConnectOptions{}); err != nil {
		return err
	}
	if err := bob.qp.Connect(ctx, alice.qp.Local(), roce.ConnectOptions{}); err != nil {
		return err
	}
	if err := alice.write(ctx, "hello, Bob", bob.mr.Remote()); err != nil {
		return err
	}
	for bob.mr.Load8(9) == 0 { // the last byte arrives last
		bob.dev.Progress()
	}
	fmt.Printf("%s\n", bob.mr.Bytes()[:10])
	return nil
}

// side is a device with what one connection needs.
type side struct {
	dev *roce.Device
	mr  *roce.MR
	cq  *roce.CQ
	qp  *roce.QP
}

func newSide(port roce.Port) (s side, err error) {
	if s.dev, err = roce.New(port); err != nil {
		return s, err
	}
	pd, err := s.dev.AllocPD()
	if err != nil {
		return s, err
	}
	if s.mr, err = pd.AllocMR(4096, roce.LocalWrite|roce.RemoteWrite); err != nil {
		return s, err
	}
	if s.cq, err = s.dev.CreateCQ(256); err != nil {
		return s, err
	}
	s.qp, err = s.dev.CreateQP(pd, roce.QPConfig{Type: roce.RC, SendCQ: s.cq})
	return s, err
}

// write copies text into the peer's memory and waits until it is there.
func (s side) write(ctx context.Context, text string, remote roce.RemoteBuffer) error {
	copy(s.mr.Bytes(), text)
	err := s.qp.PostSend(roce.SendWR{
		Op:         roce.OpWrite,
		Flags:      roce.Signaled,
		SGEs:       []roce.SGE{s.mr.SGE(0, len(text))},
		RemoteAddr: remote.Addr,
		RKey:       remote.RKey,
	})
	if err != nil {
		return err
	}
	wcs := make([]roce.WC, 1)
	if _, err := s.cq.Wait(ctx, wcs); err != nil {
		return err
	}
	return wcs[0].Err()
}
