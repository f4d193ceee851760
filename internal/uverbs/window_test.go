package uverbs

import (
	"syscall"
	"testing"

	"github.com/gorxe/gorxe/mr"
)

// window creates a memory window and returns its handle and key.
func (q *queues) window(typ uint8) (handle, key uint32) {
	q.t.Helper()
	out, _ := q.do(cmdAllocMW, enc(uint64(0), q.pd, typ, uint8(0), uint16(0)), 8, 0)
	return le.Uint32(out), le.Uint32(out[4:])
}

// bindWR is a BIND_MW of the window with this key to the first n bytes. It returns the new key.
func (q *queues) bindWR(id uint64, key uint32, n uint64, access uint32) ([]byte, uint32) {
	next := key&^0xff | (key+1)&0xff
	wr := q.sendWR(id, 8, sendSignaled, 0, 0, 0)
	copy(wr[24:], enc(mr.AddrOf(q.mem), n, q.lkey, key, next, access))
	return wr, next
}

func TestMemoryWindows(t *testing.T) {
	const localRemoteWrite, write, bindMW, localInv = 1 | 2, 0, 5, 6
	for _, typ := range []uint8{1, 2} {
		a, b := connected(t, 2, 4096)
		_, b.lkey, _ = b.reg(b.pd, b.mem, 1|16) // local write, windows
		handle, key := b.window(typ)
		for i := range uint64(3) {
			var wr []byte
			wr, key = b.bindWR(i, key, 64, localRemoteWrite)
			b.post(wr)
			want(t, b.wait(b.cring), i, 0, bindMW)
			a.post(a.sendWR(i, write, sendSignaled, mr.AddrOf(b.mem), uint64(key), 64))
			want(t, a.wait(a.cring), i, 0, 1)
			if typ == 2 {
				inv := b.sendWR(9, 7, sendSignaled, 0, 0, 0)
				copy(inv[20:], enc(key))
				b.post(inv)
				want(t, b.wait(b.cring), 9, 0, localInv)
			}
		}
		if typ == 1 { // no bytes: the window is not bound any more
			var wr []byte
			wr, key = b.bindWR(9, key, 0, 0)
			b.post(wr)
			want(t, b.wait(b.cring), 9, 0, bindMW)
		}
		a.post(a.sendWR(8, write, sendSignaled, mr.AddrOf(b.mem), uint64(key), 64))
		want(t, a.wait(a.cring), 8, 10, 1)
		b.do(cmdDeallocMW, enc(handle), 0, 0)
		if _, _, no := b.try(cmdDeallocMW, enc(handle), 0, 0); no != syscall.ENOENT {
			t.Errorf("DEALLOC_MW twice = %v, want ENOENT", no)
		}
	}
}

func TestBindWithWrongKey(t *testing.T) {
	_, b := connected(t, 2, 4096)
	_, key := b.window(2)
	wr, _ := b.bindWR(1, key+1, 64, 2)
	b.post(wr)
	want(t, b.wait(b.cring), 1, 6, 5)
	if _, _, no := b.try(cmdAllocMW, enc(uint64(0), b.pd, uint32(3)), 8, 0); no != syscall.EINVAL {
		t.Errorf("ALLOC_MW of type 3 = %v, want EINVAL", no)
	}
}
