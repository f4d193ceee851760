package session

import (
	"context"
	"errors"
	"sync"

	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/roce"
)

// refused is the private data of the rejection of a peer that is not permitted.
var refused = []byte("not permitted")

// AcceptLoop accepts connection requests until ctx ends or l is closed. It then waits for the
// functions that it has started and returns nil.
//
// It rejects requests of peers that g does not permit. For each other request, it calls admit,
// which must not block. If admit returns a function, AcceptLoop runs it in a new goroutine, with a
// context that ends when AcceptLoop returns. Otherwise admit has handled the request.
func AcceptLoop(
	ctx context.Context, l *roce.Listener, g *guard.Guard,
	admit func(*roce.Request) func(context.Context),
) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, roce.ErrClosed) {
				return nil
			}
			return err
		}
		if !g.Permits(r.RemoteAddr().Addr()) {
			_ = r.Reject(refused) // if the rejection is lost, the peer asks again
			continue
		}
		if serve := admit(r); serve != nil {
			wg.Go(func() { serve(ctx) })
		}
	}
}
