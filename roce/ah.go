package roce

import (
	"context"
	"sync/atomic"
)

// AH is an address handle: the way to the peer of a UD message.
type AH struct {
	dev  *Device
	path atomic.Pointer[Path]
}

// CreateAH resolves the peer's address, which may wait for a neighbour look-up until ctx is done.
func (d *Device) CreateAH(ctx context.Context, a AHAttr) (*AH, error) {
	index := -1
	if a.GIDIndex != nil {
		index = *a.GIDIndex
	}
	local, err := d.localGID(index, a.Remote)
	if err != nil {
		return nil, err
	}
	path, _, err := d.resolve(ctx, local, a.Remote, a.PathOptions)
	if err != nil {
		return nil, err
	}
	ah := &AH{dev: d}
	ah.path.Store(path)
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := d.open(); err != nil {
		return nil, err
	}
	d.ahs[ah] = struct{}{}
	return ah, nil
}

// Path is what goes into SendWR.AH. Ask for it anew for each work request: it changes when the neighbour's MAC does. A path
// that was handed out stays as it is.
func (a *AH) Path() *Path { return a.path.Load() }

// Remote is the peer's address.
func (a *AH) Remote() GID { return a.path.Load().Remote }

// Close forgets the address handle. Work requests that were posted with it go on. Closing twice is harmless.
func (a *AH) Close() error {
	a.dev.ctl.Lock()
	defer a.dev.ctl.Unlock()
	delete(a.dev.ahs, a)
	return nil
}
