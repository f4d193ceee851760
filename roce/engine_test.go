package roce

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// TestEngineTypes checks that work requests, completions and attributes have the memory layout of
// the engine's types, to which engine_unsafe.go converts them.
func TestEngineTypes(t *testing.T) {
	for _, p := range [][2]reflect.Type{
		{reflect.TypeFor[SendWR](), reflect.TypeFor[qp.SendWR]()},
		{reflect.TypeFor[RecvWR](), reflect.TypeFor[qp.RecvWR]()},
		{reflect.TypeFor[SGE](), reflect.TypeFor[qp.SGE]()},
		{reflect.TypeFor[WC](), reflect.TypeFor[qp.WC]()},
		{reflect.TypeFor[Attr](), reflect.TypeFor[qp.Attr]()},
	} {
		if err := sameLayout(p[0], p[1]); err != nil {
			t.Errorf("%v and %v differ: %v", p[0], p[1], err)
		}
	}
	if f := reflect.TypeFor[AH](); f.NumField() != 1 || f.Field(0).Type != reflect.TypeFor[qp.AH]() {
		t.Error("an AH has other fields than the engine's AH")
	}
}

// sameLayout compares types and, in structs, names and offsets of the fields.
func sameLayout(a, b reflect.Type) error {
	if a == b || a == reflect.TypeFor[*AH]() && b == reflect.TypeFor[*qp.AH]() {
		return nil
	}
	if a.Kind() != b.Kind() || a.Size() != b.Size() || a.Align() != b.Align() {
		return fmt.Errorf("%v has %d bytes, %v has %d", a, a.Size(), b, b.Size())
	}
	switch a.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return nil
	case reflect.Slice:
		return sameLayout(a.Elem(), b.Elem())
	case reflect.Struct:
		if a.NumField() != b.NumField() {
			return fmt.Errorf("%v has %d fields, %v has %d", a, a.NumField(), b, b.NumField())
		}
		for i := range a.NumField() {
			f, g := a.Field(i), b.Field(i)
			if f.Name != g.Name || f.Offset != g.Offset {
				return fmt.Errorf("field %s at %d, field %s at %d", f.Name, f.Offset, g.Name, g.Offset)
			}
			if err := sameLayout(f.Type, g.Type); err != nil {
				return fmt.Errorf("field %s: %w", f.Name, err)
			}
		}
		return nil
	}
	return fmt.Errorf("%v and %v are different types", a, b)
}

// TestLayoutComparison checks that sameLayout finds differences.
func TestLayoutComparison(t *testing.T) {
	type sge struct {
		Addr   uint64
		LKey   LKey
		Length uint32
	}
	for _, p := range [][2]reflect.Type{
		{reflect.TypeFor[sge](), reflect.TypeFor[SGE]()},
		{reflect.TypeFor[SendWR](), reflect.TypeFor[RecvWR]()},
		{reflect.TypeFor[[]RecvWR](), reflect.TypeFor[[]SGE]()},
		{reflect.TypeFor[uint64](), reflect.TypeFor[int64]()},
	} {
		if sameLayout(p[0], p[1]) == nil {
			t.Errorf("sameLayout(%v, %v) found no difference", p[0], p[1])
		}
	}
}

// TestEngineConstants checks that the constants have the values of the engine's.
func TestEngineConstants(t *testing.T) {
	same(t, RC, qp.RC, UC, qp.UC, UD, qp.UD)
	same(t, StateReset, qp.Reset, StateInit, qp.Init, StateRTR, qp.RTR, StateRTS, qp.RTS,
		StateSQD, qp.SQD, StateSQE, qp.SQE, StateErr, qp.Err)
	same(t, OpSend, qp.OpSend, OpSendImm, qp.OpSendImm, OpSendInv, qp.OpSendInv, OpWrite,
		qp.OpWrite, OpWriteImm, qp.OpWriteImm, OpRead, qp.OpRead, OpCmpSwap, qp.OpCmpSwap,
		OpFetchAdd, qp.OpFetchAdd, OpFlush, qp.OpFlush, OpAtomicWrite, qp.OpAtomicWrite, OpBindMW,
		qp.OpBindMW, OpLocalInv, qp.OpLocalInv, OpRegMR, qp.OpRegMR)
	same(t, Signaled, qp.Signaled, Fence, qp.Fence, Solicited, qp.Solicited)
	same(t, PlaceGlobal, qp.PlaceGlobal, PlacePersistent, qp.PlacePersistent)
	same(t, FlushRange, qp.FlushRange, FlushRegion, qp.FlushRegion)
	same(t, WCSend, qp.WCSend, WCWrite, qp.WCWrite, WCRead, qp.WCRead, WCCmpSwap, qp.WCCmpSwap,
		WCFetchAdd, qp.WCFetchAdd, WCRecv, qp.WCRecv, WCRecvWriteImm, qp.WCRecvWriteImm, WCFlush,
		qp.WCFlush, WCAtomicWrite, qp.WCAtomicWrite, WCBindMW, qp.WCBindMW, WCLocalInv,
		qp.WCLocalInv, WCRegMR, qp.WCRegMR)
	same(t, WCWithImm, qp.WCWithImm, WCWithInv, qp.WCWithInv, WCGRH, qp.WCGRH, WCSolicited,
		qp.WCSolicited, WCIPv4, qp.WCIPv4)
	same(t, Success, qp.Success, LocLenErr, qp.LocLenErr, LocQPOpErr, qp.LocQPOpErr, LocProtErr,
		qp.LocProtErr, WRFlushErr, qp.WRFlushErr, MWBindErr, qp.MWBindErr, BadRespErr,
		qp.BadRespErr, LocAccessErr, qp.LocAccessErr, RemInvReqErr, qp.RemInvReqErr, RemAccessErr,
		qp.RemAccessErr, RemOpErr, qp.RemOpErr, RetryExcErr, qp.RetryExcErr, RNRRetryExcErr,
		qp.RNRRetryExcErr, RemAbortErr, qp.RemAbortErr, FatalErr, qp.FatalErr, GeneralErr,
		qp.GeneralErr)
	same(t, LocalWrite, mr.LocalWrite, RemoteWrite, mr.RemoteWrite, RemoteRead, mr.RemoteRead,
		RemoteAtomic, mr.RemoteAtomic, ZeroBased, mr.ZeroBased, RemoteInvalidate,
		mr.RemoteInvalidate, MWBind, mr.MWBind, FlushGlobal, mr.FlushGlobal, FlushPersistent,
		mr.FlushPersistent)
	same(t, AttrState, qp.AttrState, AttrPathMTU, qp.AttrPathMTU, AttrQKey, qp.AttrQKey,
		AttrRQPSN, qp.AttrRQPSN, AttrSQPSN, qp.AttrSQPSN, AttrDestQPN, qp.AttrDestQPN, AttrAccess,
		qp.AttrAccess, AttrPKey, qp.AttrPKey, AttrPath, qp.AttrPath, AttrMaxRdAtomic,
		qp.AttrMaxRdAtomic, AttrMaxDestRdAtomic, qp.AttrMaxDestRdAtomic, AttrMinRNRTimer,
		qp.AttrMinRNRTimer, AttrTimeout, qp.AttrTimeout, AttrRetryCnt, qp.AttrRetryCnt,
		AttrRNRRetry, qp.AttrRNRRetry, AttrSelective, qp.AttrSelective, AttrCongestion,
		qp.AttrCongestion, AttrClass, qp.AttrClass, AttrRate, qp.AttrRate)
	same(t, CongestionAdaptive, qp.CongestionAdaptive, CongestionDCQCN, qp.CongestionDCQCN,
		CongestionNone, qp.CongestionNone)
	same(t, RoundRobin, qp.RoundRobin, FIFO, qp.FIFO)
	same(t, MWType1, mr.Type1, MWType2, mr.Type2)
	equal := []struct{ ours, engines uint64 }{
		{MaxQueueDepth, qp.MaxQueueDepth}, {MaxCQDepth, qp.MaxCQDepth}, {MaxSGE, qp.MaxSGE},
		{MaxInline, qp.MaxInline}, {MaxMessage, qp.MaxMessage}, {MaxRdAtomic, qp.MaxRdAtomic},
		{MaxAckTimeout, cm.MaxAckTimeout}, {uint64(DefaultPKey), uint64(bth.DefaultPKey)},
		{GRHLen, qp.GRHLen}, {NumClasses, qp.NumClasses}, {-PreemptAtEnd, -qp.PreemptAtEnd},
		{MinRate, qp.MinRate}, {MaxRate, qp.MaxRate}, {MaxBurst, qp.MaxBurst},
		{DefaultPrefetch, qp.DefaultPrefetch}, {MaxPrefetch, qp.MaxPrefetch},
		{MaxMeters, qp.MaxMeters},
		{uint64(DefaultSpin), uint64(loop.DefaultSpin)},
	}
	for i, v := range equal {
		if v.ours != v.engines {
			t.Errorf("limit %d is %d, the engine's is %d", i, v.ours, v.engines)
		}
	}
}

// same compares pairs of integers of different types.
func same(t *testing.T, pairs ...any) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		a, b := reflect.ValueOf(pairs[i]), reflect.ValueOf(pairs[i+1])
		if a.Uint() != b.Uint() || fmt.Sprint(pairs[i]) != fmt.Sprint(pairs[i+1]) {
			t.Errorf("constant %d of %v is %d (%v), the engine's is %d (%v)", i/2, a.Type(),
				a.Uint(), pairs[i], b.Uint(), pairs[i+1])
		}
	}
}
