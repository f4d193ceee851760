package copyflags

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// defaultPort is the RDMA port (RDMA_PS_TCP) of recv. It is unrelated to TCP ports.
const defaultPort = 7490

// Bounds of the flags, in bytes.
const (
	minBlock = 64 << 10
	maxBlock = 64 << 20
	minPool  = 1 << 20
)

// Flags are the flags that both commands have.
type Flags struct {
	Device    device.Flags
	Port      cli.Int
	Streams   cli.Int
	Block     cli.Size
	Pool      cli.Size
	Direct    bool
	Overwrite cli.Choice
	Token     string
	JSON      bool
}

// Register adds the flags. byDefault describes the default network interface.
func (f *Flags) Register(fs *pflag.FlagSet, byDefault string) {
	f.Streams = cli.Int{N: 1, Min: 1, Max: rftp.MaxQPs}
	f.Block = cli.Size{Bytes: rftp.DefaultBlockSize, Min: minBlock, Max: maxBlock}
	f.Pool = cli.Size{Bytes: rftp.DefaultPool, Min: minPool, Max: rftp.MaxPool}
	f.Overwrite = cli.Choice{Value: record.Always.String(), Words: []string{record.Never.String(),
		record.Older.String(), record.Always.String()}}
	f.Device.RegisterIface(fs, byDefault)
	cli.PortVar(fs, &f.Port, "port", "p", defaultPort, "RDMA port of recv (not a TCP port)")
	fs.Var(&f.Streams, "streams",
		"number of queue pairs for data; the smaller value of both sides "+
			"applies")
	fs.Var(&f.Block, "block", "size of the blocks of data; the smaller value of both sides applies")
	fs.Var(&f.Pool, "pool", "memory for blocks: at least twice the bandwidth times the round-trip "+
		"time of the network")
	fs.BoolVar(&f.Direct, "direct", false,
		"read and write large files past the page cache (O_DIRECT)")
	fs.StringVar(&f.Token, "token-file", "", "file with a secret that both sides have")
	f.Device.Register(fs)
}

// Replace returns the value of the flag --overwrite.
func (f *Flags) Replace() record.Overwrite {
	switch f.Overwrite.Value {
	case record.Never.String():
		return record.Never
	case record.Older.String():
		return record.Older
	}
	return record.Always
}

// ReadToken returns the token, nil without --token-file.
func (f *Flags) ReadToken() (filecopy.Token, error) {
	if f.Token == "" {
		return nil, nil
	}
	return filecopy.ReadToken(f.Token)
}

// Check returns a usage error if flags exclude each other.
func (f *Flags) Check() error {
	if f.Pool.Bytes < f.Block.Bytes {
		return cli.Usagef("--pool %v is smaller than --block %v: choose at least several blocks",
			&f.Pool, &f.Block)
	}
	return nil
}

// OpenDevice opens the device. It does not poll before it sleeps, because the goroutine that waits
// for blocks polls; see rftp.Config.Drive.
func (f *Flags) OpenDevice(ctx context.Context) (*roce.Device, error) {
	return f.Device.OpenContext(ctx, roce.Auto, roce.WithExpert(roce.Expert{Spin: roce.NoSpin}))
}

// Config returns the configuration of a connection.
func (f *Flags) Config() rftp.Config {
	return rftp.Config{BlockSize: f.Block.Int(), MinBlockSize: minBlock, DataQPs: f.Streams.N,
		Pool: f.Pool.Int(), SourcePool: f.Pool.Int(), Drive: true}
}
