// Package mr holds protection domains (PD), memory regions (MR) and their keys, and contains all
// code that accesses registered memory for the engine.
//
// Programs use it by package roce: roce.PD and roce.MR have the methods that they need. The section
// on the memory model below holds for them, too. This package alone is for programs that run the
// engine themselves, such as simulators: a [Table] creates the objects for a qp.Engine.
//
// # Concurrency
//
// Only one caller at a time may change a [Table] (AllocPD, DeallocPD, Register, Deregister, the
// same for windows and fast MRs, NextRKey, Prepare); package roce serializes these calls. The
// checks, Flush, Bind, RegisterFast and the Invalidate methods may run concurrently with such a
// change and with each other, on any number of goroutines. They are lock-free. PD.Retain and
// PD.Release may be called from any goroutine. The package has no goroutines, clocks or random
// source.
//
// # Keys
//
// An L_Key or R_Key is a counter value under a secret permutation of all 32-bit values. No key is
// used twice; when all values are used, registration fails with [ErrExhausted]. A stale key
// therefore never matches a newer MR. A peer that knows some keys learns nothing about others: with
// N regions registered, a guess matches one with a probability of N in 2^32, and must still match
// its PD, range and access flags. Local and remote keys come from two unrelated permutations and
// are kept in two tables. A live value is never in both, except for memory of another process
// ([Table.RegisterForeign]). An MR without remote access has no R_Key.
//
// # Memory model
//
// Three parties access registered memory: peers, whose data the device copies; the device's
// atomics; and the program. The rules are:
//
//  1. [CopyIn] stores the last aligned word of a packet's data atomically, with release semantics,
//     after all bytes before it. That word is the aligned 8 bytes if the data ends on such a
//     boundary and fills them, and otherwise the aligned 4 bytes with the last byte. In this word
//     only the bytes of the packet change (compare-and-swap), so concurrent writes to neighboring
//     bytes are preserved. The last packet of a message is copied after all packets before it, so
//     its last word comes last. With selective repeat, the other packets may be copied in any order
//     and before earlier messages are complete, but never over the data of a later packet.
//  2. A program that polls a byte or word that a peer writes must read it with the accessors of the
//     MR ([MR.Load8], [MR.Load64], ...), which have acquire semantics. When it sees the last value
//     of a WRITE in its last byte or word, it may read the rest of that WRITE, and everything that
//     the same connection wrote earlier, with plain loads. Other bytes of a WRITE of several
//     packets prove nothing. The completion of a receive (SEND, WRITE with immediate) has the same
//     effect.
//  3. The accessors for stores have release semantics: a program may fill a buffer with plain
//     stores and publish it with [MR.Store8] or [MR.Store64] for a peer that READs it. [CopyOut]
//     loads the last aligned word of its range first, with acquire semantics, and then the rest. A
//     READ response of one packet with a status word after the data therefore contains data at
//     least as new as the status, and a READ after a READ of one packet sees memory that is at
//     least as new. After a READ of several packets, of which one may be lost and read again, only
//     a READ with Fence does. A READ or atomic accesses memory after the WRITEs before it are
//     visible (IBA 9.5). If a program stores one value and then loads another, while a peer WRITEs
//     the other and then READs the first, at least one of them sees the new value.
//  4. A range of 1 to 8 bytes that is one aligned word is written and read atomically. Longer
//     ranges are not.
//  5. [FetchAdd], [CompareSwap] and the accessors Add64 and CompareAndSwap64 are the same kind of
//     operation (sync/atomic, host byte order), so peers and the program can share a counter.
//  6. A plain load or store of a byte that a peer may be writing at the same time is a data race,
//     as between two goroutines.
//
// The compare-and-swap on a 4-byte word may include up to three bytes outside of the range, and
// even of the MR. It stores back the value that it finds there at that moment, so no other write is
// lost.
//
// With the race detector (go build -race) the accesses of the device are hidden from the detector
// and the order above is reported to it explicitly. CopyIn is reported as an ordinary write. A
// program that follows the rules has no reports, and one that reads a buffer too early has one.
//
// # Reading order
//
// For maintainers:
//
//   - pd.go, region.go, refs.go: PDs and MRs; access flags; reference counts
//   - table.go, errors.go: Register and Deregister, the control plane
//   - check.go: CheckLocal, CheckRemote and CheckScope, the data path
//   - keyowner.go, window.go, tagged.go, fast.go: memory windows and fast MRs, whose keys become
//     valid through work requests
//   - invalidate.go: invalidation of keys
//   - flush.go: FLUSH
//   - foreign.go: memory of other processes
//   - prefetch.go, memory_unsafe.go: prefetching of keys and memory; addresses of the tables
//   - key.go, index.go: how keys are generated and found
//   - copy_unsafe.go, word_unsafe.go: copies, atomics, accessors
//   - hooks_norace_unsafe.go, hooks_race_unsafe.go: reports to the race detector
package mr
