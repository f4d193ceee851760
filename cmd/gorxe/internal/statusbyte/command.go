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

// defaultPort is the RDMA port (RDMA_PS_TCP) at which recv listens. The kernel's TCP ports are others.
const defaultPort = 7480

// Command is "gorxe statusbyte".
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "statusbyte",
		Short: "Send streams of up to 256 devices over one queue pair, one-sided throughout",
		Long: `Send streams of up to 256 devices (cameras, radars, files) over one queue pair, one-sided throughout: blocks of memory with a
status byte each. The receiver posts no receives and sends nothing; it looks at its memory.

After Xiao et al., "Status-Byte-Assisted RDMA Transmission Mechanism", Appl. Sci. 2024, 14, 7437.`,
		Example: `  # here: a directory for each device
  gorxe statusbyte recv -d eth0 --dir /data

  # on another host: two files, or twelve synthetic cameras
  gorxe statusbyte send 10.0.0.1 left.raw right.raw
  gorxe statusbyte send 10.0.0.1 --cameras 12 --duration 10s

  # a consumer follows one device's directory
  gorxe statusbyte tail /data/device-003 --remove | decode`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return cli.Usagef("there is no statusbyte %q: choose send, recv or tail", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(sendCommand(), recvCommand(), tailCommand())
	return cmd
}

// shared are the flags of send and recv.
type shared struct {
	nic    device.Flags
	port   cli.Int
	blocks cli.Int
	size   cli.Size
	json   bool
}

func (f *shared) register(fs *pflag.FlagSet, blocks int, size int64, otherwise string) {
	f.port = cli.Int{N: defaultPort, Min: 1, Max: 65535}
	f.blocks = cli.Int{N: blocks, Min: 1, Max: statusbyte.MaxBlocks}
	f.size = cli.Size{Bytes: size, Min: 1, Max: statusbyte.MaxBlockSize}
	fs.StringVarP(&f.nic.Iface, "dev", "d", "", "network interface (default: "+otherwise+")")
	fs.VarP(&f.port, "port", "p", "RDMA port on which recv listens (no TCP port)")
	fs.Var(&f.blocks, "blocks", "how many blocks each end has, N")
	fs.Var(&f.size, "block-size", "bytes of data that a block holds")
	f.nic.Register(fs)
	fs.BoolVar(&f.json, "json", false, "end with one JSON object on stdout, and print nothing else there")
}

// deviceList reads "0-11,20".
func deviceList(text string) (list []uint8, err error) {
	seen := map[int]bool{}
	for _, part := range strings.Split(text, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		from, err1 := strconv.ParseUint(strings.TrimSpace(lo), 10, 8)
		to, err2 := strconv.ParseUint(strings.TrimSpace(hi), 10, 8)
		if err1 != nil || err2 != nil || from > to {
			return nil, cli.Usagef("%q is no list of device numbers: write them as 0-11,20; they go from 0 to 255", text)
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
