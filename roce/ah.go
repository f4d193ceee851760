package roce

import (
	"context"

	"github.com/gorxe/gorxe/qp"
)

// AH is an address handle: the path to the receiver of UD messages. Create it once with
// Device.CreateAH or Device.CreateAHFromWC and use it in any number of work requests (SendWR.AH),
// on any UD QP of the device. The device keeps its path up to date when the next hop changes.
type AH struct {
	ah qp.AH // the only field: the engine gets a pointer to it
}

// Remote returns the address of the receiver.
func (a *AH) Remote() GID { return a.ah.Remote() }

// Path returns the current path, which must not be modified. It is nil for a zero AH.
func (a *AH) Path() *Path { return a.ah.Path() }

// Close releases the address handle: the device no longer updates its path. Work requests that were
// posted before are not affected. It always returns nil; closing twice is harmless.
func (a *AH) Close() error { return a.ah.Close() }

// CreateAH creates an address handle for the peer a.Remote. It resolves the address, which may take
// a neighbor lookup; ctx limits the wait.
//
// Errors: ErrClass, ErrNoGID, ErrFamily, ErrUnreachable, ErrMTU, ErrClosed.
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
	ah := &AH{}
	d.eng.InitAH(&ah.ah, path, func(*qp.AH) { d.forgetAH(ah) })
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := d.open(); err != nil {
		return nil, err
	}
	d.ahs[ah] = struct{}{}
	return ah, nil
}

func (d *Device) forgetAH(a *AH) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	delete(d.ahs, a)
}
