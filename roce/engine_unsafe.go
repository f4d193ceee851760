package roce

import (
	"unsafe"

	"github.com/gorxe/gorxe/qp"
)

// The functions of this file pass work requests, completions and attributes between this package
// and the engine without copying. Programs see types of this package, whose documentation shows
// their fields. They have the memory layout of the engine's types: TestEngineTypes compares names,
// offsets and types of all fields, and the values of all constants.

// These arrays do not compile if the sizes differ.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(SGE{})-unsafe.Sizeof(qp.SGE{})]
	_ = [1]struct{}{}[unsafe.Sizeof(SendWR{})-unsafe.Sizeof(qp.SendWR{})]
	_ = [1]struct{}{}[unsafe.Sizeof(RecvWR{})-unsafe.Sizeof(qp.RecvWR{})]
	_ = [1]struct{}{}[unsafe.Sizeof(WC{})-unsafe.Sizeof(qp.WC{})]
	_ = [1]struct{}{}[unsafe.Sizeof(Attr{})-unsafe.Sizeof(qp.Attr{})]
	_ = [1]struct{}{}[unsafe.Sizeof(AH{})-unsafe.Sizeof(qp.AH{})]
)

func engineSends(wrs []SendWR) []qp.SendWR {
	return *(*[]qp.SendWR)(unsafe.Pointer(&wrs))
}

func engineRecvs(wrs []RecvWR) []qp.RecvWR {
	return *(*[]qp.RecvWR)(unsafe.Pointer(&wrs))
}

func engineWCs(wcs []WC) []qp.WC {
	return *(*[]qp.WC)(unsafe.Pointer(&wcs))
}

func (a *Attr) engine() *qp.Attr { return (*qp.Attr)(unsafe.Pointer(a)) }
