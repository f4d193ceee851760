// Package fence orders memory for less than sync/atomic does where less is enough.
//
// Go's atomic stores are sequentially consistent. On amd64 that is an XCHG, a locked instruction of some 9 ns that waits until
// every store before it has won its cache line, perhaps from another core. Two patterns of the data path can do with a plain MOV,
// about 2 ns with the call, which never waits:
//
//   - A store that only publishes what was written before it: a ring's index, the end of a critical section, a copy's last word. The architecture
//     keeps stores in order, so a MOV is a release (Intel SDM 3A, 9.2.2). [Store].
//   - "I set mine, then look at yours" (Dekker's pattern), where one side comes round a million times a second and the other once
//     in a while. The rare side calls [Heavy], which makes all threads of the process pass a full barrier (membarrier(2)); then the
//     frequent one needs none. Only if [Asymmetric] says so: else it has to use an atomic store.
//
// Where a load somewhere later must not overtake such stores, [Order] is the barrier that they saved.
//
// On other architectures, and under the race detector, which does not see assembly, Store is the atomic store; arm64's
// (STLR) is cheap, and orders Dekker's pattern as well.
package fence
