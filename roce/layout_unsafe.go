package roce

import (
	"unsafe"

	"github.com/gorxe/gorxe/internal/prefetch"
	"github.com/gorxe/gorxe/qp"
)

// qpPadding fills the last cache line of the engine's part of a QP.
const qpPadding = (prefetch.Line - unsafe.Sizeof(qp.QP{})%prefetch.Line) % prefetch.Line
