package bench

import (
	"math"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/rftp"
	"github.com/gorxe/gorxe/papers/rftp/live"
)

// Limits of the copies in real time.
const (
	minCopy   = 1 << 20 // bytes
	maxCopy   = 1 << 40
	maxFiles  = 10_000_000
	maxRounds = 1000
)

func rftpCommand() *cobra.Command {
	o := rftp.Options{Live: live.DefaultConfig()}
	seed := cli.Int{N: 1, Max: math.MaxInt}
	link := cli.Choice{Value: rftp.All, Words: []string{rftp.Virtual, kit.Veth, kit.Memory, rftp.All}}
	rounds := cli.Int{N: o.Live.Rounds, Min: 1, Max: maxRounds}
	size := cli.Size{Bytes: o.Live.Size, Min: minCopy, Max: maxCopy}
	files := cli.Int{N: o.Live.Files, Min: 1, Max: maxFiles}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "rftp",
		Short: "Repeat the RFTP paper's experiments, and compare copies with TCP, scp and rsync",
		Long: `Measure transfers of blocks in virtual time, and in real time.

--link virtual: simulate transfers of blocks from memory to memory, with the default credits and with those of the
RFTP paper, over 10 Gb/s with a round trip of 49 ms (wan_) and over 25 Gb/s with 25 us (lan_), with 1
and 8 streams (_8). ramp_ is the time to the full rate. fio_ compares WRITE, SEND and READ with 1 and
64 operations outstanding. Devices exchange real packets; only time is virtual, so the figures are the
same on every machine. They take several minutes.

--link veth, as root: copy between two namespaces in real time. mem: from memory to memory, beside
'gorxe perf write-bw' and a tool like GridFTP over TCP; file_tmpfs and file_disk: 'gorxe send', beside
that tool, io.Copy with sendfile, scp, and rsync over ssh and without; tree: many small files, beside
scp and rsync. The tools alternate, round by round. Rates, and CPU seconds of both sides per 10^9
bytes, are medians. scp and rsync are left out if they are not installed, or if there is no sshd,
which is started with temporary keys in one of the namespaces.

--link memory: mem on the link in memory, beside WRITEs.

The default is virtual and veth, or memory if AF_XDP on a veth pair is not available.`,
		Example: `  sudo gorxe bench rftp
  gorxe bench rftp --only wan_default,ramp_ms --json
  sudo gorxe bench rftp --link veth --only mem,file_tmpfs --plot rftp.svg
  sudo gorxe bench rftp --link veth --size 128m --files 5000 --rounds 1`,
		Args: cli.Named(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Seed, o.Link = uint64(seed.N), link.Value
			o.Live.Rounds, o.Live.Size, o.Live.Files = rounds.N, size.Bytes, files.N
			r, err := rftp.Run(cmd.Context(), o, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return kit.Print(r, asJSON, o.Plot, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	fs := cmd.Flags()
	fs.Var(&seed, "seed", "seed of losses and connections")
	fs.Var(&link, "link", "what to measure: virtual, veth, memory or all")
	fs.Var(&rounds, "rounds", "rounds in real time, each measuring every tool once")
	fs.Var(&size, "size", "size of the file, and of what is sent from memory")
	fs.Var(&files, "files", "files of the tree, 4 KiB each")
	fs.StringVar(&o.Live.Tmpfs, "tmpfs", o.Live.Tmpfs, "directory on tmpfs for files")
	fs.StringVar(&o.Live.Disk, "disk", o.Live.Disk, "directory on a disk for files")
	fs.StringSliceVar(&o.Only, "only", nil, "names of the figures to measure (default: all)")
	fs.StringVar(&o.Plot, "plot", "", bothPlots)
	cli.JSONVar(fs, &asJSON, "print one JSON array")
	return cmd
}

// copySideCommand is the hidden command of the processes that "gorxe bench rftp" starts.
func copySideCommand() *cobra.Command {
	var s live.Side
	cmd := &cobra.Command{
		Use:    live.SideCommand + " ROLE",
		Hidden: true,
		Args:   cli.Named("ROLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.Run(cmd.Context(), args[0], cmd.OutOrStdout())
		},
	}
	s.AddFlags(cmd.Flags())
	return cmd
}
