package ps

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/service"
	"github.com/gorxe/gorxe/internal/status"
)

// services finds node services.
type services struct{ socket string }

func (s *services) register(fs *pflag.FlagSet) {
	fs.StringVar(&s.socket, "socket", "",
		"socket of a node service (default: all at the standard paths)")
}

// read returns the state of all services that answer, and the errors of the others. Without
// --socket, it ignores sockets at which there is no service or that this user may not open, and
// there may be no services. If ctx ends, the error is the cause.
func (s *services) read(ctx context.Context) (list []*status.Snapshot, err error) {
	if s.socket != "" {
		one, err := status.Read(ctx, s.socket)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, fmt.Errorf("%w: check --socket, or start a service (gorxe up)", err)
		}
		return []*status.Snapshot{one}, nil
	}
	list = []*status.Snapshot{}
	for _, path := range service.Sockets() {
		one, e := status.Read(ctx, path)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case e == nil:
			list = append(list, one)
		case !errors.Is(e, service.ErrNone):
			err = errors.Join(err, e)
		}
	}
	return list, err
}

// none is what the commands print if there are no services.
const none = "No node service that this user may use answers. Start one with gorxe up, or name its " +
	"socket with --socket."
