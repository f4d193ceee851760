package programs

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/gorxe/gorxe/internal/service"
)

// The hidden command of gorxe that is a node service until its last program has left. It reports on
// a descriptor that it is ready.
const (
	serviceCommand = "run-service"
	serviceReady   = "ready\n"
)

// startService starts a service for the address of the server. stop ends it.
func (b *bench) startService(ctx context.Context) (stop func(), err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	ctx, cancel := context.WithCancel(ctx)
	p := b.command(ctx, []string{serviceCommand, b.local.dev[0], service.DefaultPath(b.local.dev[0])})
	p.ExtraFiles = []*os.File{w}
	err = p.Start()
	_ = w.Close()
	stop = func() {
		cancel()
		_ = p.Wait() // it may have ended before
	}
	if err != nil {
		cancel()
		return nil, err
	}
	text, err := io.ReadAll(r)
	if err == nil && string(text) != serviceReady {
		err = fmt.Errorf("start a node service: %s", strings.TrimSpace(string(text)))
	}
	if err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}
