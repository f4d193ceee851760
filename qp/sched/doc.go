// Package sched decides which QP is served next, and which QP's resources are prefetched before
// that.
//
// It implements the scheduling queue and the prefetch queue of "Toward Scalable RDMA Through
// Resource Prefetching" (Ma et al., IEEE Computer Architecture Letters 24, 2025), section III. A
// NIC uses the resources of a connection once and then not again until it has served all others, so
// a cache that keeps recently used entries does not help. But the NIC itself determines the order
// and knows what it needs next:
//
//   - Scheduling triggered (III.A): QPs with work wait in the scheduling queue. Each is served for
//     at most one chunk of bytes and goes to the back of the queue if it has more. The prefetch
//     queue is a copy that runs up to a window of QPs ahead.
//   - Software triggered (III.B): if fewer QPs than a window are active, the queue is too short to
//     prefetch from. Then the poster's call tells which QP is next, before it builds the WQE; see
//     [Queue.BelowWindow].
//
// [Window] is the paper's formula for the size of the window.
//
// [Queue] is a single ring of IDs with three cursors instead of two queues: [Queue.Push] writes at
// tail, [Queue.Prefetch] reads at pre, and [Queue.Pop] reads at head, with head <= pre <= tail. The
// owner chooses the type of IDs: the model of the NIC uses numbers, the engine uses pointers, which
// saves a table. The QPs themselves have no links, which would not be in the cache.
//
// With traffic classes, the engine has a Queue for each class that is served round robin, and only
// that of class 0 prefetches. [Queue.Remove] serves QPs that change their class.
//
// All operations but Remove take constant time, and none allocates. They are not safe for
// concurrent use. The same code runs gorxe's engine (package qp) and the model of the paper's NIC
// ("gorxe sim prefetch").
//
// # Reading order
//
//   - queue.go: the queue and the window formula
package sched
