// Package sched decides which QP is served next, and which QP's memory is fetched before its turn comes.
//
// It is the scheduling queue and the prefetch queue of "Toward Scalable RDMA Through Resource Prefetching" (Ma et al.,
// IEEE Computer Architecture Letters 24, 2025), section III. A NIC touches what belongs to a connection once a turn and then not
// again until all others had theirs: no cache that keeps what was used last helps. But the NIC itself made the order of the
// turns, so it knows what it needs next:
//
//   - scheduling triggered (III.A): QPs with work wait in the scheduling queue. Each gets a turn of at most one chunk of bytes,
//     and goes to the back while it has more. The prefetch queue is a copy that runs up to a window of QPs ahead;
//   - software triggered (III.B): when fewer QPs than a window are active, the queue is too short to look ahead in. Then the
//     poster's call itself says which QP is next, before it builds its WQE: see [Queue.Hint].
//
// [Window] is the paper's formula for how far to look ahead.
//
// # One ring, three cursors
//
// A copy that is always the same queue, only read earlier, needs no second array. [Queue] is one ring of IDs: tail is where
// [Queue.Push] writes, pre where [Queue.Prefetch] reads, head where [Queue.Pop] reads, and head <= pre <= tail. An ID is what
// the owner likes: a number (the model of the NIC), or a pointer (the engine, which so needs no table to find the QP by). Nothing is
// linked through QPs that are not in the cache.
//
// All operations take constant time and allocate nothing. Nothing here is safe for concurrent use: the thread that owns the
// QPs owns the queue. The same code drives gorxe's engine (package qp) and the model of the paper's NIC ("gorxe sim prefetch").
//
// Read queue.go.
package sched
