package roce

import (
	"context"

	"github.com/gorxe/gorxe/qp"
)

// AH is an address handle: the path to the receiver of UD messages. Create it once with
// Device.CreateAH or Device.CreateAHFromWC and use it in any number of work requests (SendWR.AH),
// on any UD QP of the device. The device keeps its path up to date when the next hop changes. The
// method Remote returns the receiver's address; Close releases the handle. Work requests that were
// posted before Close are not affected.
type AH = qp.AH

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
	ah := d.eng.NewAH(path, d.forgetAH)
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
