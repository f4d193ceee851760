package service_test

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
)

// limitedHost starts a service with options.
func limitedHost(t *testing.T, o service.Options) *host {
	t.Helper()
	p, err := udp.Open("lo", udp.Options{Addrs: []netip.Addr{udp.RandomLoopback()}, Shared: true})
	must(t, err)
	return newHostWith(t, p, o)
}

// The devices of members have the limits of the service. Those of the service's own device do not.
func TestProgramLimits(t *testing.T) {
	limits := driver.Limits{QPs: 2, MRs: 3, Memory: 3 * memory, Rate: 20_000_000}
	h := limitedHost(t, service.Options{Limits: limits})
	p, peer := newProgram(t, h.Path()), newProgram(t, h.Path())
	if got := p.dev.Limits(); got != roce.Limits(limits) {
		t.Errorf("Limits() = %+v, want %+v", got, limits)
	}
	if got := h.dev.Limits(); got.Rate != 0 || got.Memory != 0 || got.QPs == 2 {
		t.Errorf("Limits() of the service's device = %+v, want none", got)
	}
	_, err := p.AddQP()
	must(t, err)
	if _, err := p.AddQP(); !errors.Is(err, roce.ErrTooManyQPs) {
		t.Errorf("a third QP: %v, want ErrTooManyQPs", err)
	}
	pd := p.MR.PD()
	if _, err := pd.AllocMR(3*memory, roce.LocalWrite); !errors.Is(err, roce.ErrNoMemory) {
		t.Errorf("AllocMR() = %v, want ErrNoMemory", err)
	}
	for range 2 {
		_, err := pd.RegisterMR(make([]byte, 64), roce.LocalWrite)
		must(t, err)
	}
	if _, err := pd.RegisterMR(make([]byte, 64), roce.LocalWrite); !errors.Is(err, roce.ErrTooMany) {
		t.Errorf("a fourth region: %v, want ErrTooMany", err)
	}

	l, err := peer.dev.Listen(netip.AddrPortFrom(h.addr, 7473), roce.ListenOptions{})
	must(t, err)
	start := time.Now()
	exchange(t, p, l, peer.Endpoint)
	// A burst of 1 ms, and twice that what is in flight.
	if took, least := time.Since(start), 45*time.Millisecond; took < least {
		t.Errorf("1 MiB at 20 MB/s took %v, want at least %v", took, least)
	}
}

// The kernel knows the rate of a member's sockets, and does not raise it.
func TestPacingRate(t *testing.T) {
	const rate = 8_000_000
	h := limitedHost(t, service.Options{Limits: driver.Limits{Rate: rate}})
	for want, path := range map[int]string{rate + rate/8: h.Path(), -1: newHost(t).Path()} {
		port, err := service.Join(path, service.JoinOptions{})
		must(t, err)
		defer port.Close()
		fd, err := port.Share(port.Addrs()[0].Addr())
		must(t, err)
		got, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE)
		must(t, err)
		must(t, unix.Close(fd))
		if int(got) != want {
			t.Errorf("SO_MAX_PACING_RATE = %d, want %d", int(got), want)
		}
	}
}

// A user has at most Options.PerUser programs.
func TestPerUser(t *testing.T) {
	h := limitedHost(t, service.Options{PerUser: 1})
	port, err := service.Join(h.Path(), service.JoinOptions{})
	must(t, err)
	defer port.Close()
	if _, err := roce.OpenService(h.Path()); !errors.Is(err, roce.ErrServiceRefused) {
		t.Errorf("OpenService() = %v, want ErrServiceRefused", err)
	}
}
