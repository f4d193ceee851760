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

// traceBlocks is how many blocks a trace shows: some turns of the ring.
const traceBlocks = 60

// trace captures what the sending end sees of blocks of a size, a pcap file for each lane, in dir: where a ratio is other
// than the paper's, it shows why. 'gorxe dump' reads it.
func (b *bench) trace(ctx context.Context, dir string, size int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write traces: %w", err)
	}
	for _, lane := range laneNames {
		if err := b.traceLane(ctx, lane, size, filepath.Join(dir, lane+".pcap")); err != nil {
			return fmt.Errorf("trace %s: %w", lane, err)
		}
	}
	return nil
}

func (b *bench) traceLane(ctx context.Context, lane string, size int, name string) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w, err := newTeedWorld(b.link, b.cpus, manual, func(i int, p driver.Port) driver.Port {
		if i > 0 {
			return p
		}
		return loopback.Tee(p, file)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return w.with(ctx, lane, shape{blocks: blocks, size: size}, release, func(p *pair) error {
		for range traceBlocks {
			if err := p.s.post(ctx, size); err != nil {
				return err
			}
		}
		if err := p.s.flush(ctx); err != nil {
			return err
		}
		return p.await(traceBlocks)
	})
}
