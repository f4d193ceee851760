// Package mr keeps protection domains (PD), memory regions (MR), their keys,
// and the only ways in which the NIC touches registered memory.
//
// # Reading order
//
//   - pd.go, region.go: what a PD and an MR are; Access rights.
//   - table.go: Register, Deregister: the control plane.
//   - check.go: CheckLocal, CheckRemote and CheckScope: the hot path.
//   - slot.go, window.go, fast.go: memory windows and fast MRs, whose keys come
//     to life by work requests; invalidate.go: how keys end.
//   - flush.go: FLUSH.
//   - ahead.go, package prefetch: keys and memory that will be needed soon.
//   - key.go, index.go: where keys come from and how one is found.
//   - copy_unsafe.go, word_unsafe.go: copies, atomics, accessors.
//   - hooks_norace_unsafe.go, hooks_race_unsafe.go: what the race detector is told.
//
// # Who may call what
//
// One caller at a time changes a [Table] (AllocPD, DeallocPD, Register,
// Deregister, and the same for windows and fast MRs, NextRKey, Prepare); the
// roce package serialises them. The checks, Flush, Bind, RegisterFast and the
// Invalidates may run at the same time as such a change and as each other, on
// any number of threads: they take no lock and wait for nobody. PD.Retain and
// PD.Release are free for all. The package has no goroutine, no clock and no
// random source of its own.
//
// # Keys
//
// An L_Key or R_Key is the image of a counter under a secret permutation of
// all 32-bit values. So no key comes twice before the values run out (then
// [ErrExhausted], never a silent repeat): a stale key can not hit a younger
// MR. And a peer that holds any number of keys learns nothing of the others:
// with N regions registered a guess hits one with a chance of N in 2^32, and
// the PD, range and rights still stand behind it. Local and remote keys come
// from two unrelated permutations and are found in two unrelated tables; a
// live value is never in both. An MR without a remote right has no R_Key.
//
// # Memory model
//
// Registered memory has three parties: a peer (through the NIC's copies), the
// NIC's atomics, and the program. The rules:
//
//  1. [CopyIn] stores the last aligned word of the packet's data atomically
//     and in release order, after all the bytes before it. "Word" is the
//     aligned 8 bytes if the data ends on such a boundary and fills it, else
//     the aligned 4 bytes in which the last byte lies; of that word only the
//     bytes of the packet change (compare-and-swap), so neighbours survive
//     whoever writes them. A message of many packets is copied packet by
//     packet in PSN order, so its last word comes last of all.
//  2. A program that polls a byte or word which a peer writes reads it with
//     the MR's accessors ([MR.Load8], [MR.Load64], ...), which acquire. Once
//     it sees the value that ends a WRITE it may read the rest of that WRITE,
//     and all that the same connection wrote earlier, with plain loads.
//     The completion of a receive (SEND, WRITE with immediate) does the same.
//  3. Accessor stores release: a program may fill a buffer with plain stores
//     and publish it by [MR.Store8] or [MR.Store64] for a peer that READs it.
//     [CopyOut] loads the last aligned word of its range first, acquiring,
//     and the rest after it. So a READ response that carries a status word
//     behind its data, in one packet, shows data at least as new as the
//     status; and READs posted one after the other see stores in order.
//     A READ or an atomic looks when the WRITEs before it have landed (IBA
//     9.5; on a bus a read pushes the writes): if a program stores, then
//     looks, and a peer WRITEs there, then READs what the program stored,
//     one of the two at least sees the other.
//  4. A range of 1 to 8 bytes that is one aligned word is written and read
//     whole, never torn. Longer ranges have no such promise.
//  5. [FetchAdd], [CompareSwap] and the accessors Add64 and
//     CompareAndSwap64 are one and the same kind of operation (sync/atomic,
//     host byte order), so a counter is exact however peers and program mix.
//  6. A plain load or store of a byte that a peer may be writing at that
//     moment is a data race, as between two goroutines.
//
// The compare-and-swap on a 4-byte word may include up to three bytes outside
// the range, even outside the MR. It only ever stores back the value that it
// finds there at that very instant, so no other writer's byte can be lost.
//
// Under the race detector (go build -race) the NIC's own accesses are hidden
// from it and the edges above are told to it in words; what CopyIn writes is
// reported as an ordinary write. So a program that keeps to the rules is
// clean, and one that reads a buffer too early is caught.
package mr
