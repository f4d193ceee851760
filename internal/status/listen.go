package status

import (
	"net"
	"net/netip"
	"strconv"

	"github.com/gorxe/gorxe/internal/cli"
)

// Address is the value of the flag --metrics.
type Address struct {
	Host string // a name or an address
	Port uint16
	set  bool
}

// Set implements pflag.Value. It accepts PORT, :PORT and ADDR:PORT; without an address the server
// can only be reached from this host.
func (a *Address) Set(text string) error {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		host, port = "", text
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return cli.Usagef("%q is not an address of a server: write PORT or ADDR:PORT, "+
			"such as 9464 or 10.0.0.2:9464", text)
	}
	if host == "" {
		host = netip.AddrFrom4([4]byte{127, 0, 0, 1}).String()
	}
	*a = Address{Host: host, Port: uint16(n), set: true}
	return nil
}

// String implements pflag.Value.
func (a *Address) String() string {
	if !a.set {
		return ""
	}
	return net.JoinHostPort(a.Host, strconv.Itoa(int(a.Port)))
}

// Type implements pflag.Value.
func (a *Address) Type() string { return "address" }

// IsSet reports whether the flag was given.
func (a *Address) IsSet() bool { return a.set }
