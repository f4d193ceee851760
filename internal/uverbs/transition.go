package uverbs

import (
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// rule has the attributes of a transition. The last three are optional.
type rule struct{ ud, uc, rc, optUD, optUC, optRC uint32 }

// Attributes that are required together.
const (
	maskToInit = maskPKeyIndex | maskPort | maskAccess
	maskToRTR  = maskAV | maskPathMTU | maskDestQPN | maskRQPSN
	maskToRTS  = maskTimeout | maskRetryCnt | maskRNRRetry | maskSQPSN | maskMaxRdAtomic
)

// rules are the transitions of IBA 11.2.5.3, in the form of the kernel's qp_state_table. Each state
// can move to RESET, and all but RESET to ERR, without attributes. The engine accepts more, because
// it has defaults for many attributes; a program that leaves out one would fail on other devices.
var rules = map[[2]roce.State]rule{
	{roce.StateReset, roce.StateInit}: {ud: maskPKeyIndex | maskPort | maskQKey, uc: maskToInit,
		rc: maskToInit},
	{roce.StateInit, roce.StateInit}: {optUD: maskPKeyIndex | maskPort | maskQKey,
		optUC: maskToInit, optRC: maskToInit},
	{roce.StateInit, roce.StateRTR}: {uc: maskToRTR,
		rc:    maskToRTR | maskMaxDestRdAtomic | maskMinRNRTimer,
		optUD: maskPKeyIndex | maskQKey, optUC: maskPKeyIndex | maskAccess,
		optRC: maskPKeyIndex | maskAccess},
	{roce.StateRTR, roce.StateRTS}: {ud: maskSQPSN, uc: maskSQPSN, rc: maskToRTS,
		optUD: maskOptUD, optUC: maskOptUC, optRC: maskOptRC},
	{roce.StateRTS, roce.StateRTS}: {optUD: maskOptUD, optUC: maskOptUC, optRC: maskOptRC},
	{roce.StateRTS, roce.StateSQD}: {optUD: maskSQDNotify, optUC: maskSQDNotify,
		optRC: maskSQDNotify},
	{roce.StateSQD, roce.StateRTS}: {optUD: maskOptUD, optUC: maskOptUC, optRC: maskOptRC},
	{roce.StateSQD, roce.StateSQD}: {optUD: maskPKeyIndex | maskQKey,
		optUC: maskAV | maskAccess | maskPKeyIndex | maskPathMig,
		optRC: maskPort | maskAV | maskToRTS&^maskSQPSN | maskMaxDestRdAtomic | maskAccess |
			maskPKeyIndex | maskMinRNRTimer | maskPathMig},
	{roce.StateSQE, roce.StateRTS}: {optUD: maskOptUD, optUC: maskCurState | maskAccess},
}

// Optional attributes of transitions to RTS.
const (
	maskOptUD = maskCurState | maskQKey
	maskOptUC = maskCurState | maskAccess | maskPathMig
	maskOptRC = maskOptUC | maskMinRNRTimer
)

// permitted reports whether MODIFY_QP can change the attributes of mask in state from.
func permitted(typ qp.Type, from, to roce.State, mask uint32) bool {
	if mask&maskState == 0 {
		to = from
	}
	mask &^= maskState
	if to == roce.StateReset || to == roce.StateErr && from != roce.StateReset {
		return mask == 0
	}
	r, ok := rules[[2]roce.State{from, to}]
	required, optional := r.rc, r.optRC
	switch typ {
	case qp.UD:
		required, optional = r.ud, r.optUD
	case qp.UC:
		required, optional = r.uc, r.optUC
	}
	return ok && mask&required == required && mask&^(required|optional) == 0
}
