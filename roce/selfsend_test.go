package roce

import (
	"testing"

	"github.com/gorxe/gorxe/udp"
)

// The QPs of a device on UDP sockets can be connected to each other.
func TestSendToSelf(t *testing.T) {
	port, err := udp.Open(udp.RandomLoopback().String(), udp.Options{})
	must(t, err)
	d, err := New(port)
	must(t, err)
	defer func() { must(t, d.Close()) }()
	pd, err := d.AllocPD()
	must(t, err)
	var qps [2]*QP
	var mrs [2]*MR
	for i := range qps {
		qps[i], err = d.CreateQP(pd, QPConfig{})
		must(t, err)
		mrs[i], err = pd.AllocMR(10_000, LocalWrite|RemoteWrite)
		must(t, err)
	}
	for i, q := range qps {
		must(t, q.Connect(t.Context(), qps[1-i].Local(), ConnectOptions{}))
	}
	mrs[0].Bytes()[9999] = 42
	to := mrs[1].Remote()
	must(t, qps[0].PostSend(SendWR{Op: OpWrite, SGEs: []SGE{mrs[0].SGE(0, 10_000)},
		RemoteAddr: to.Addr, RKey: to.RKey, Flags: Signaled}))
	var wcs [1]WC
	_, err = qps[0].SendCQ().Wait(t.Context(), wcs[:])
	must(t, err)
	if wcs[0].Status != Success || mrs[1].Bytes()[9999] != 42 {
		t.Errorf("status = %v, last byte = %d, want success and 42", wcs[0].Status,
			mrs[1].Bytes()[9999])
	}
}
