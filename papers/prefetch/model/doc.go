// Package model models the RNIC of "Toward Scalable RDMA Through Resource Prefetching" (Ma et al.,
// IEEE Computer Architecture Letters 24, 2025): a discrete-event simulation of a requester with
// bounded caches. It is driven by the scheduling and prefetch queues of package qp/sched, the code
// that schedules QPs in gorxe's engine. It reproduces the paper's figures 3 to 6.
//
// The model has no clock, no I/O and no randomness except a seeded generator: the same
// configuration gives the same result.
//
// # The mechanism
//
// QPs with work wait in the scheduling queue. In its turn a QP passes a pipeline in order: one
// stage each looks up its QPC, its WQEs, its MPT entry and its MTT entry; then its payload is
// read from the host, and a chunk of messages is put on the link. When the WQEs of the turn have
// been taken, the QP goes to the back of the queue. A lookup that misses asks the host over PCIe.
// The answer takes a round trip and shares the PCIe bandwidth with WQEs and payload, first come
// first served. A stage has two slots: while one QP waits for its miss, the next one can already
// ask. QPs do not overtake each other.
//
// So without prefetching, when all lookups miss, two QPs pass each stage per PCIe round trip:
// that is the halved rate of figures 3 and 4, and of figure 5, where only the last two stages
// miss. The prefetcher takes QPs from the prefetch queue and fetches the chain QPC, WQEs, MPT,
// MTT for each, one after the other because each says where the next one is, but for as many QPs
// at a time as the window holds. With a window of w, the chain of a QP starts w turns before its
// own turn, and the pipeline gives the later lookups some more turns: the rate rises with w until
// the chain is done in time.
//
// An entry of the WQE cache holds the WQEs of a turn. As long as the active QPs fit in the cache,
// the WQEs of posted messages are read in advance, in equal shares of the cache. Beyond that only
// the prefetcher reads them in advance. Caches are fully associative and LRU; see cache.go for
// the reason.
//
// # What the paper states, what is assumed, what is calibrated
//
// The paper states 100 Gb/s, 128 Gb/s, 500 ns, messages of 64 bytes, 50 of them per QP, and
// caches for 2048 QPs (where the decline begins), 256 MRs (figure 5) and 100 QPs (figure 6).
// Config.Assumptions lists everything else with its reason. The results depend on two numbers
// that the paper does not state:
//
//   - The chunk, 640 bytes. It is calibrated with the window of 7 through the paper's formula:
//     chunk/BW * 7 >= 2 * 500 ns, two steps because "the prefetcher first prefetches the QPC and
//     WQEs, followed by MPT and MTT", gives ten messages at 70 Mop/s. (Four steps would give
//     twenty.)
//   - The two slots of a stage: the smallest number that lets a stage ask while it waits. One
//     slot and twenty messages give nearly the same rates, but reach the peak with a window of 4:
//     see Variants.
//
// The 35 and 40 Mop/s, the slope between windows 0 and 7, and the difference in latency follow. The
// peak is that of the link with RoCEv2 frames over IPv4, tagged for a lossless class; untagged it
// is 77 Mop/s. The latency without misses is a sum of assumed times, of which only the PCIe part is
// the paper's: the agreement with its 2.4 us shows only that the assumptions are plausible.
//
// # Differences from the paper
//
//   - The commodity NIC of figure 3 is a measured ConnectX-5, whose internals are unknown. Its rate
//     falls slowly beyond 2048 QPs, to half at 16,384. With LRU and round robin order, the model's
//     rate falls at once. With random order, the rate of a pipeline falls over the next thousand
//     QPs: it waits for the slowest of its QPs, so a few misses cost nearly as much as many. The
//     rate of a third kind of NIC (the series Units) falls slowly: instead of a pipeline it has a
//     few units that look up everything for one QP each and overtake each other. Its rate follows
//     the share of misses. The number of units is calibrated with the half at 16,384 QPs, so that
//     point is no evidence, but the shape is.
//   - The paper's rate reaches its peak with a window of 7. The model reaches 93 % of the link
//     there, and all of it at 10: PCIe is three quarters busy, and fetches wait for payload.
//   - The abstract's 125 % more throughput is not what figure 4 shows, 100 % (from 35 to 70 Mop/s).
//     The model has 109 %: a factor of 2.09 instead of 2.25, within 10 % of the abstract's factor.
//   - One QP alone reaches the peak: there are always posted WQEs, and nothing waits for
//     completions.
//   - As in the paper, the responder is not modeled beyond its share of the latency. PCIe packet
//     headers are not modeled.
//
// # Reading order
//
//   - params.go: the parameters of the NIC and its host.
//   - event.go, cache.go: simulated time and serial lines, and LRU caches.
//   - nic.go: the pipeline and the prefetcher.
//   - run.go: heavy load and its message rate.
//   - light.go: one WRITE at a time and its latency.
//   - figures.go: the paper's figures and numbers.
//   - explain.go: assumptions and variants of them.
package model
