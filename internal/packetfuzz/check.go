package packetfuzz

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/ping"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/roce"
)

const (
	pingBytes     = 4096
	rpingBytes    = 64 // rping's default: its server has no more memory
	checkRounds   = 3
	checkAttempts = 3
)

// checker is an honest peer of the host.
type checker struct {
	dev      *roce.Device
	gid      device.GIDIndex
	target   netip.Addr
	method   string
	port     int
	patience time.Duration
}

// check returns nil if the host serves a new connection and returns the right data.
func (c *checker) check(ctx context.Context) error {
	var err error
	for i := range checkAttempts {
		limited, cancel := context.WithTimeout(ctx, c.patience)
		if c.method == CheckPing {
			err = c.ping(limited)
		} else {
			err = c.rping(limited)
		}
		expired := errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil
		if !expired && err != nil && i < checkAttempts-1 {
			select { // a refusal comes at once; the host may need a moment
			case <-limited.Done():
			case <-time.After(c.patience / 20):
			}
		}
		cancel()
		if err == nil || ctx.Err() != nil {
			return err
		}
		if expired {
			err = fmt.Errorf("no answer for %v", c.patience)
		}
	}
	return err
}

func (c *checker) rping(ctx context.Context) (err error) {
	s, err := rping.Dial(ctx, c.dev, c.gid.Chosen(), rpingAddr(c.target, c.port), rpingBytes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	for range checkRounds {
		if err := s.Ping(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *checker) ping(ctx context.Context) (err error) {
	port := c.port
	if port == 0 {
		port = exchange.DefaultPort
	}
	addr := netip.AddrPortFrom(c.target, uint16(port))
	s, err := ping.Dial(ctx, c.dev, c.gid, addr.String(), ping.Params{Bytes: pingBytes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	got := 0
	s.Replied = func(int, time.Duration, time.Duration) { got++ }
	for seq := range checkRounds {
		s.Prepare(seq)
		if err := s.Send(seq); err != nil {
			return err
		}
		end, _ := ctx.Deadline()
		if err := s.Wait(ctx, end, true); err != nil {
			return err
		}
	}
	if got < checkRounds {
		return fmt.Errorf("%d of %d pings answered", got, checkRounds)
	}
	return nil
}
