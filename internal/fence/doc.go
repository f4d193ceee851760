// Package fence provides memory ordering that is cheaper than sync/atomic, where weaker ordering is
// enough.
//
// Go's atomic stores are sequentially consistent. On amd64 they are locked instructions (XCHG) that
// wait until all earlier stores of the processor are visible. Two patterns on the data path need
// less:
//
//   - A store that publishes earlier writes, such as the index of a ring or the end of a critical
//     section. [Store] is a plain MOV on amd64, which never waits. The architecture keeps stores in
//     order, so the MOV has release semantics (Intel SDM 3A, 9.2.2).
//   - Dekker's pattern, in which each of two sides sets its own flag and then reads the other's
//     flag, if one side runs it very often and the other rarely. The frequent side uses Store. The
//     rare side calls [Heavy] between its store and its load, which makes all threads of the
//     process execute a full barrier (membarrier(2)). This works only if [Asymmetric] returns true.
//     Otherwise the frequent side must use an atomic store.
//
// [Order] keeps later loads from overtaking earlier calls of Store.
//
// On other architectures, and under the race detector, which does not see assembly code, Store is
// the atomic store.
//
// Reading order:
//
//   - store_amd64.go, store_other.go: Store, Store64 and Order
//   - heavy.go: Asymmetric and Heavy
package fence
