// Package fence provides stores that are cheaper than those of sync/atomic, where release semantics
// are enough.
//
// Go's atomic stores are sequentially consistent. On amd64 they are locked instructions (XCHG) that
// wait until all earlier stores of the processor are visible. A store that only publishes earlier
// writes, such as the index of a ring or the end of a critical section, needs less: [Store] is a
// plain MOV on amd64, which never waits. The architecture keeps stores in order, so the MOV has
// release semantics (Intel SDM 3A, 9.2.2). [Order] keeps later loads from overtaking earlier calls
// of Store.
//
// On other architectures, and under the race detector, which does not see assembly code, Store is
// the atomic store.
//
// Subpackage litmus runs tests of memory ordering.
//
// Reading order:
//
//   - store_amd64.go, store_other.go: Store, Store64 and Order
package fence
