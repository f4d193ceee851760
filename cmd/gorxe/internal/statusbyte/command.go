package statusbyte

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// defaultPort is the RDMA port (RDMA_PS_TCP) on which recv listens. It is unrelated to TCP ports.
const defaultPort = 7480

// Command returns the command "gorxe statusbyte".
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "statusbyte",
		Short: "Send streams of up to 256 devices over one queue pair with one-sided operations",
		Long: `Send streams of up to 256 devices (cameras, radars, files) over one queue pair with
one-sided operations only. The data moves in blocks of memory with a status byte each.
The receiver posts no receives and sends nothing; it polls its memory.

After Xiao et al., "Status-Byte-Assisted RDMA Transmission Mechanism for Optimizing
Multi-Task Video Streaming in Edge Computing", Appl. Sci. 2024, 14, 7437.`,
		Example: `  # on this host: one directory for each device
  gorxe statusbyte recv -d eth0 --dir /data

  # on another host: two files, or twelve synthetic cameras
  gorxe statusbyte send 10.0.0.1 left.raw right.raw
  gorxe statusbyte send 10.0.0.1 --cameras 12 --duration 10s

  # a consumer follows the directory of one device
  gorxe statusbyte tail /data/device-003 --remove | decode`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("no such command %q: choose send, recv or tail", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(sendCommand(), recvCommand(), tailCommand())
	return cmd
}

// shared are the flags that send and recv share.
type shared struct {
	device device.Flags
	port   cli.Int
	blocks cli.Int
	size   cli.Size
	json   bool
}

// register adds the flags. defaultDev describes the default network interface.
func (f *shared) register(fs *pflag.FlagSet, defaultDev string) {
	f.blocks = cli.Int{N: statusbyte.DefaultBlocks, Min: 1, Max: statusbyte.MaxBlocks}
	f.size = cli.Size{Bytes: statusbyte.DefaultBlockSize, Min: 1, Max: statusbyte.MaxBlockSize}
	f.device.RegisterIface(fs, defaultDev)
	cli.PortVar(fs, &f.port, "port", "p", defaultPort,
		"RDMA port on which recv listens (not a TCP port)")
	fs.Var(&f.blocks, "blocks", "number of blocks on each side")
	fs.Var(&f.size, "block-size", "size of the data in a block")
	f.device.Register(fs)
	cli.JSONVar(fs, &f.json, "print only the final report, as one JSON object")
	f.device.GIDIndex = device.AnyGID
}

// parseDevices parses a list of device numbers such as "0-11,20".
func parseDevices(text string) (list []uint8, err error) {
	seen := map[int]bool{}
	for _, part := range strings.Split(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		from, err1 := strconv.ParseUint(strings.TrimSpace(lo), 10, 8)
		to, err2 := strconv.ParseUint(strings.TrimSpace(hi), 10, 8)
		if err1 != nil || err2 != nil || from > to {
			return nil, cli.Usagef("%q is not a list of device numbers: write it as 0-11,20 with numbers from 0 to 255", text)
		}
		for d := int(from); d <= int(to); d++ {
			if !seen[d] {
				seen[d] = true
				list = append(list, uint8(d))
			}
		}
	}
	return list, nil
}
