package service

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/udp"
)

// JoinOptions configure Join. The zero value suits most users.
type JoinOptions struct {
	Name string     // of the program; "": that with which it was started
	Addr netip.Addr // the only address to use; the zero Addr: all addresses of the service
	// NetNS is a file descriptor of the member's network namespace, for SameNet; 0 or a negative
	// value: that of the process.
	NetNS int
	// SameNet makes Join fail with ErrOtherNet if the service is in another network namespace.
	SameNet bool
}

// MemberPort is the port of a member of a service.
type MemberPort struct {
	*udp.Port
	c *client
}

var (
	_ driver.Member  = (*MemberPort)(nil)
	_ driver.Limited = (*MemberPort)(nil)
)

// Join joins the service whose socket is at a path. The error wraps ErrNone if no service answers,
// ErrOtherNet, ErrRefused with the reason, or driver.ErrNoAddress if the service does not have the
// address.
func Join(path string, o JoinOptions) (*MemberPort, error) {
	o.Addr = o.Addr.Unmap().WithZone("")
	if o.Name == "" && len(os.Args) > 0 {
		o.Name = filepath.Base(os.Args[0])
	}
	c, err := open(path, &o)
	if err != nil {
		return nil, err
	}
	p, err := udp.OpenProvided(c)
	if err != nil {
		return nil, fmt.Errorf("join the node service at %s: %w", path, err)
	}
	return &MemberPort{p, c}, nil
}

// sameNet compares the network namespace of a service with that of a member.
func sameNet(cookie uint64, ns int) (err error) {
	if cookie == 0 {
		return nil
	}
	var own uint64
	err = osnet.In(ns, func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		own = netCookie(fd)
		return unix.Close(fd)
	})
	if err == nil && own != cookie {
		err = ErrOtherNet
	}
	return err
}

// Slot implements driver.Member.
func (p *MemberPort) Slot() uint8 { return p.c.slot }

// Limits implements driver.Limited.
func (p *MemberPort) Limits() driver.Limits { return p.c.limits }

// Listen implements driver.Member.
func (p *MemberPort) Listen(id uint64) error {
	_, err := p.c.request(context.Background(), &message{Op: opListen, Service: id})
	return err
}

// Unlisten implements driver.Member. It waits until other programs can listen.
func (p *MemberPort) Unlisten(id uint64) {
	_, _ = p.c.request(context.Background(), &message{Op: opUnlisten, Service: id})
}

// Will implements driver.Member.
func (p *MemberPort) Will(key uint32, frame []byte) { p.c.setWill(key, frame) }

// SetReport sets the function that describes the member for the status of the service. It is called
// in another goroutine. Its result may have at most MaxReport bytes.
func (p *MemberPort) SetReport(f func() []byte) { p.c.report.Store(&f) }
