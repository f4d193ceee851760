package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
)

// TraceBlocks is the number of blocks in a capture.
const TraceBlocks = 60

// trace writes a pcap file for each transport into dir, with the packets that the sending side sees
// for blocks of size bytes. "gorxe dump" reads the files.
func (b *bench) trace(ctx context.Context, dir string, size int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create the directory for traces: %w", err)
	}
	for _, transport := range transports {
		if err := b.traceTransport(ctx, transport, size,
			filepath.Join(dir, transport+".pcap")); err != nil {
			return fmt.Errorf("trace %s: %w", transport, err)
		}
	}
	return nil
}

func (b *bench) traceTransport(ctx context.Context, transport string, size int,
	name string) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	d, err := openDevices(b.Link, b.CPUs, manual, func(side int, p driver.Port) driver.Port {
		if side > 0 {
			return p
		}
		return loopback.Tee(p, file)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s := shape{blocks: blocks, size: size}
	return d.with(ctx, transport, s, releaseAll, func(p *pair) error {
		return p.postAll(ctx, TraceBlocks, size)
	})
}
