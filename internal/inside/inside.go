package inside

import (
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// The parameters are objects of package roce, which this package cannot import. Other types cause a
// panic.
var (
	// Loop returns the loop of a *roce.Device.
	Loop func(device any) *loop.Loop
	// Engine returns the engine of a *roce.Device. Only the loop's owner may use it.
	Engine func(device any) *qp.Engine
	// QP returns the engine's part of a *roce.QP.
	QP func(qp any) *qp.QP
	// CQ returns the engine's part of a *roce.CQ.
	CQ func(cq any) *qp.CQ
	// SRQ returns the engine's part of a *roce.SRQ.
	SRQ func(srq any) *qp.SRQ
	// AH returns the engine's part of a *roce.AH.
	AH func(ah any) *qp.AH
	// ResizeCQ changes the number of completions that a *roce.CQ holds. As the loop's owner it
	// calls prepare, which polls all completions, and resizes the CQ if prepare returns true.
	ResizeCQ func(cq any, depth int, prepare func() bool) error
	// Backing returns a roce.MROption: the memory of the region is a copy of memory of another
	// process.
	Backing func(b mr.Backing) any
)
