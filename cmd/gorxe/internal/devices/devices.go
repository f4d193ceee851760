// Package devices is the command "gorxe devices", which lists the network interfaces and what each
// offers to gorxe.
package devices

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
)

// Command returns the command "gorxe devices".
func Command() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "devices",
		Short: "List the network interfaces and what each offers to gorxe",
		Long: `List the network interfaces and what each offers to the current user: data paths (xdp
for AF_XDP, udp for UDP sockets), with the one that 'auto' selects first, XDP modes,
with the mode that 'auto' selects first and whether it receives runs of packets that UDP
sockets send, queues, MTU, the largest path MTU, addresses by GID index, and the reason
if a data path is missing. The command changes nothing and needs no privileges. To find
out whether UDP port 4791 is free, it opens the port for a moment.`,
		Example: `  gorxe devices

  # names of usable interfaces
  gorxe devices --json | jq -r '.[] | select(.usable) | .name'`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := xdp.Interfaces(0)
			if err != nil {
				return err
			}
			offers := offersOf(list)
			if asJSON {
				return cli.JSON(cmd.OutOrStdout(), entries(list, offers))
			}
			return show(cmd.OutOrStdout(), list, offers)
		},
	}
	cli.JSONVar(cmd.Flags(), &asJSON, "print one JSON array")
	return cmd
}

// offers says which data paths an interface has. A nil error means that it has the data path.
type offers struct{ xdp, udp error }

func offersOf(list []xdp.Interface) []offers {
	permission := xdp.CheckPermission()
	out := make([]offers, len(list))
	for i := range list {
		out[i] = offers{list[i].Err, udp.Probe(list[i].Name)}
		if out[i].xdp == nil {
			out[i].xdp = permission
		}
	}
	return out
}

// datapaths lists the data paths, starting with the one that auto selects.
func (o *offers) datapaths() []string {
	names := []string{}
	if o.xdp == nil {
		names = append(names, roce.PortXDP.String())
	}
	if o.udp == nil {
		names = append(names, roce.PortUDP.String())
	}
	return names
}

// Entry describes an interface in the output of --json.
type Entry struct {
	Name       string   `json:"name"`
	Kind       string   `json:"kind"`
	Driver     string   `json:"driver,omitempty"`
	MAC        string   `json:"mac"`
	Up         bool     `json:"up"`
	MTU        int      `json:"mtu"`
	PathMTU    bth.MTU  `json:"path_mtu"` // 0: the MTU is too small
	Queues     int      `json:"queues"`
	Modes      []string `json:"xdp_modes"` // "native", "generic"
	Auto       string   `json:"xdp_auto"`  // mode that auto selects; "" without modes
	ZeroCopy   bool     `json:"zero_copy"`
	Multi      bool     `json:"multi_buffer"`
	Runs       bool     `json:"xdp_runs"`              // AF_XDP receives runs of packets uncut
	Program    uint32   `json:"xdp_program,omitempty"` // ID of the attached program
	StripsVLAN bool     `json:"strips_vlan"`
	GIDs       []GID    `json:"gids"`
	Datapaths  []string `json:"datapaths"` // "xdp", "udp"; the one that auto selects first
	WhyNotXDP  string   `json:"why_not_xdp,omitempty"`
	WhyNotUDP  string   `json:"why_not_udp,omitempty"`
	Usable     bool     `json:"usable"`            // it has a data path
	WhyNot     string   `json:"why_not,omitempty"` // the reason if it has none
}

// GID is an address of an interface with its GID index.
type GID struct {
	Index   int     `json:"index"`
	GID     bth.GID `json:"gid"`
	Address string  `json:"address"` // with prefix length
}

// gids returns the GID table that a device has after it was opened. An address with several
// prefixes has one GID.
func gids(addrs []netip.Prefix) []GID {
	list := []GID{}
	for _, a := range addrs {
		gid := bth.GIDFromAddr(a.Addr())
		if !slices.ContainsFunc(list, func(g GID) bool { return g.GID == gid }) {
			list = append(list, GID{len(list), gid, a.String()})
		}
	}
	return list
}

func entries(list []xdp.Interface, offers []offers) []Entry {
	out := make([]Entry, len(list))
	for i := range list {
		d, o := &list[i], &offers[i]
		e := Entry{
			Name: d.Name, Kind: d.Kind, Driver: d.Driver, MAC: d.MAC.String(), Up: d.Up, MTU: d.MTU,
			PathMTU: d.PathMTU,
			Queues:  d.Queues, Modes: modes(d), ZeroCopy: d.XDP.ZeroCopy, Multi: d.XDP.MultiBuffer,
			Runs: d.Runs, Program: d.Program,
			StripsVLAN: d.StripsVLAN, GIDs: gids(d.Addrs), Datapaths: o.datapaths(),
		}
		e.Usable = len(e.Datapaths) > 0
		if len(e.Modes) > 0 {
			e.Auto = d.Auto.String()
		}
		if o.xdp != nil {
			e.WhyNotXDP = o.xdp.Error()
		}
		if o.udp != nil {
			e.WhyNotUDP = o.udp.Error()
		}
		if !e.Usable {
			e.WhyNot = e.WhyNotXDP
			if d.Err == nil {
				e.WhyNot = e.WhyNotUDP
			}
		}
		out[i] = e
	}
	return out
}

// modes lists the XDP modes of an interface, starting with the mode that auto selects.
func modes(d *xdp.Interface) []string {
	m := []string{}
	if d.XDP.Native {
		m = append(m, xdp.Native.String())
	}
	if d.XDP.Generic {
		m = append(m, xdp.Generic.String())
	}
	if len(m) == 2 && d.Auto == xdp.Generic {
		m[0], m[1] = m[1], m[0]
	}
	return m
}

func show(w io.Writer, list []xdp.Interface, offers []offers) error {
	t := cli.Table{Columns: []cli.Column{
		{Title: "interface"}, {Title: "driver"}, {Title: "state"}, {Title: "MTU", Align: cli.Right},
		{Title: "path MTU", Align: cli.Right}, {Title: "queues", Align: cli.Right},
		{Title: "data paths"}, {Title: "XDP modes"},
		{Title: "addresses by GID index"},
	}}
	var whyNot []string
	for i := range list {
		d, o := &list[i], &offers[i]
		state := "down"
		if d.Up {
			state = "up"
		}
		t.Row(d.Name, d.Driver, state, d.MTU, orDash(int(d.PathMTU)), d.Queues,
			listOrDash(o.datapaths()), offer(d), addresses(d))
		if o.xdp != nil {
			whyNot = append(whyNot, fmt.Sprintf("%s: xdp: %v", d.Name, o.xdp))
		}
		if o.udp != nil {
			whyNot = append(whyNot, fmt.Sprintf("%s: udp: %v", d.Name, o.udp))
		}
	}
	if err := t.Write(w); err != nil || len(whyNot) == 0 {
		return err
	}
	_, err := fmt.Fprintf(w, "\nNot available:\n  %s\n", strings.Join(whyNot, "\n  "))
	return err
}

func listOrDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ", ")
}

func orDash(n int) string {
	if n == 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

// offer describes the XDP features of an interface.
func offer(d *xdp.Interface) string {
	m := modes(d)
	if len(m) == 0 {
		return "-"
	}
	if d.XDP.ZeroCopy {
		m = append(m, "zero-copy")
	}
	if d.XDP.MultiBuffer {
		m = append(m, "multi-buffer")
	}
	if d.Runs {
		m = append(m, "runs")
	}
	return strings.Join(m, ", ")
}

func addresses(d *xdp.Interface) string {
	var a []string
	for _, g := range gids(d.Addrs) {
		a = append(a, fmt.Sprintf("%d: %s", g.Index, g.Address))
	}
	return listOrDash(a)
}
