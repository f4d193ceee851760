// Package flowplan reads descriptions of flows, in YAML or JSON, for "gorxe flow": which messages
// share a link, with which periods, priorities and deadlines. It checks that they fit, draws how
// they are sent, and sends them.
//
// # Description
//
//	link:
//	  rate: 978Mb/s     # or a number of bits per second
//	  mtu: 1024         # path MTU; 1024 if missing
//	  overhead: 82      # bytes per packet besides its payload; 82 if missing
//	  delay: 5us        # propagation; 0 if missing
//	  gap: 16us         # from the end of a part until its acknowledgment has arrived; twice the
//	                    # delay, 100 bytes and 5 us if missing
//	  backlog: 0        # bytes that may be queued below the scheduler
//	  in_flight: 1      # parts in flight
//	flows:
//	  - name: brake
//	    priority: 7     # 0 to 63; the traffic class is the priority, 7 at most
//	    size: 64        # bytes of a message, or 64KiB, 2MiB
//	    period: 1ms
//	    phase: 0s       # of the first message
//	    jitter: 0s
//	    deadline: 500us # the period if missing
//	    on_late: warn   # or retry, drop
//	    retries: 1      # of retry
//	    max_age: 1ms    # older messages are not sent
//	  - name: video
//	    priority: 1
//	    size: 2MiB
//	    part: 64KiB     # or split: [1MiB, 1MiB]
//	    burst: 2MiB     # a token bucket instead of a period: bytes
//	    rate: 100Mb/s
//
// # Reading order
//
//   - plan.go: reading a description.
//   - values.go: sizes, rates and durations.
//   - timeline.go, svg.go: how flows share an ideal link.
//   - run.go, measure.go: sending the messages of a description.
//   - serve.go: receiving them on another host.
package flowplan
