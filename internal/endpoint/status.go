package endpoint

import (
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// advice explains the statuses whose cause is likely on the peer or on the network.
var advice = map[roce.Status]string{
	roce.RetryExcErr: "the peer's RDMA side does not answer: " +
		"check that it still runs, that nothing drops UDP port 4791, " +
		"and that the network carries packets of the path MTU",
	roce.RNRRetryExcErr: "the peer posted no receives",
	roce.RemAccessErr:   "the peer refused access to its memory",
	roce.WRFlushErr:     "the connection has ended",
}

// StatusError returns an error that describes a failed completion, or nil if it succeeded.
func StatusError(wc *roce.WC) error {
	if wc.Status == roce.Success {
		return nil
	}
	if a, ok := advice[wc.Status]; ok {
		return fmt.Errorf("%v failed: %v: %s", wc.Opcode, wc.Status, a)
	}
	return fmt.Errorf("%v failed: %v", wc.Opcode, wc.Status)
}
