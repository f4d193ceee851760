// Package model is a model of the RNIC in "Toward Scalable RDMA Through Resource Prefetching" (Ma et al., IEEE Computer
// Architecture Letters 24, 2025): a discrete-event simulation of a requester with bounded caches, driven by the scheduling and
// prefetch queues of package qp/sched, the same code that serves QPs in gorxe's engine. "gorxe sim prefetch" shows its results
// beside the paper's figures 3 to 6.
//
// It has no clock, no I/O and no randomness but a seeded generator: the same configuration gives the same result.
//
// # Reading order
//
//   - params.go: the NIC and its host as numbers.
//   - event.go, cache.go: simulated time, serial lines; LRU caches.
//   - nic.go: the pipeline and the prefetcher.
//   - run.go: heavy load and its message rate; light.go: one WRITE at a time and its latency.
//   - figures.go: the paper's figures and stated numbers; explain.go: assumptions, and what follows from other ones.
//
// # The mechanism
//
// QPs with work wait in the scheduling queue. A turn takes one through a pipeline in order: its QPC is looked up, then its WQEs,
// its MPT entry and its MTT entry, one stage each; then its payload is read from the host, and a chunk of messages goes onto the
// link. After the WQEs of the turn are taken the QP goes to the back of the queue. A lookup that misses asks the host over PCIe:
// its answer takes a round trip, and shares the PCIe rate with WQEs and payload, first come first served. A stage has two slots:
// while one QP waits for its miss the next can already ask for its own. Nothing overtakes.
//
// So without prefetching, when all miss, each stage lets two QPs pass in a PCIe round trip, and the pipeline no more: that is
// the half rate of figures 3 and 4, and of figure 5, where only the last two stages miss. The prefetcher takes QPs from the
// prefetch queue and fetches for each the chain QPC, WQEs, MPT, MTT, one after the other because each says where the next is,
// but the chains of as many QPs at once as the window holds. With a window of w a QP's chain starts w turns before its own, and
// the pipeline gives its later lookups some turns more: the rate rises with w until the chain is done in time.
//
// The WQE cache holds a turn's WQEs per entry. As long as the active QPs fit in it, what is posted is read ahead in the shares that they
// have of it; beyond, the prefetcher alone does that. Caches are fully associative and LRU; see cache.go for why.
//
// # What the paper states, what is assumed, what was calibrated
//
// Stated, and taken over: 100 Gb/s, 128 Gb/s, 500 ns, messages of 64 bytes, 50 a QP, caches of 2048 QPs (where the decline
// begins), 256 MRs (figure 5) and 100 QPs (figure 6). Everything else is listed by [Assumptions] with its reason. The results
// hang on two that the paper does not state:
//
//   - the chunk, 640 bytes. Calibrated by one of the paper's numbers, the window of 7, through its formula: chunk/BW * 7 >= 2 *
//     500 ns, two steps because "the prefetcher first prefetches the QPC and WQEs, followed by MPT and MTT", gives ten messages
//     at 70 Mop/s. (Four steps would give twenty.)
//   - the two slots of a stage: the least that let it ask while it waits. One slot and twenty messages give nearly the
//     same rates, but are at the peak with a window of 4 already: see [Variants].
//
// The 35 and 40 Mop/s, the slope between windows 0 and 7, and the gap in latency then follow. The peak is that of the link with
// frames as RoCEv2 over IPv4 makes them, tagged for a lossless class; untagged it is 77 Mop/s. The latency without misses is a sum of
// assumed times, of which only the PCIe part is the paper's: its 2.4 us say no more than that the assumptions are plausible.
//
// # Where it differs from the paper
//
//   - The commodity NIC of figure 3 is a measured ConnectX-5, whose inside nobody knows; its rate falls slowly beyond
//     2048 QPs, down to half at 16,384. In turns, LRU falls at once. In random order a pipeline falls over the next thousand QPs: it
//     waits for the slowest of the QPs in it, so a few misses cost nearly as much as many. What falls slowly is a NIC of a third kind,
//     the series Units: it has no pipeline but a few units, each of which looks up what one QP needs, and they overtake each
//     other. Then the rate follows the share of lookups that miss. Their number is calibrated, by the half at 16,384 QPs, so that end is
//     no evidence; the shape is.
//   - The paper's rate reaches its peak at a window of 7, this one's has there 93 % of the link's and all of it at 10: the PCIe
//     line is three quarters full, and fetches wait behind payload.
//   - The abstract's 125 % more throughput is not what figure 4 shows, 100 % (from 35 to 70 Mop/s). Here it is 109 %: as a factor, 2.09
//     against 2.25, within 10 % of the abstract's; as a percentage not.
//   - One QP alone reaches the peak: WQEs are always posted, and nothing waits for completions.
//   - The responder is not modelled beyond its share of the latency, like the paper's; nor are PCIe's packet headers.
package model
