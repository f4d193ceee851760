// Package flowplan reads descriptions of flows, in YAML or JSON, for "gorxe flow": which messages
// share a link, with which periods, priorities and deadlines. It checks that they fit, draws how
// they are sent, and sends them.
//
// # Description
//
//	link:
//	  rate: 1Gb/s       # or a number of bits per second
//	  mtu: 1024         # path MTU; 1024 if missing
//	  overhead: 82      # bytes per packet besides its payload; 82 if missing
//	  delay: 5us        # propagation; 0 if missing
//	  gap: 16us         # from the end of a part until its acknowledgment has arrived; twice the
//	                    # delay, 100 bytes and 5 us if missing
//	  backlog: 0        # bytes that may be queued below the scheduler or the classes besides
//	  in_flight: 1      # parts in flight
//	tasks:              # work of the sender, each on a processor of its own
//	  - name: grab
//	    period: 33ms
//	    phase: 0s
//	    time: 2ms       # that it takes; 0 if missing
//	  - name: detect
//	    after: camera   # a task or flow, or a list; it is activated when all have ended
//	    time: 5ms
//	flows:
//	  - name: brake
//	    priority: 7     # 0 to 63
//	    class: 7        # traffic class, 0 to 7; the priority, 7 at most, if missing
//	    size: 64        # bytes of a message, or 64KiB, 2MiB
//	    period: 1ms
//	    phase: 0s       # of the first message
//	    jitter: 0s
//	    deadline: 500us # the period if missing
//	    on_late: warn   # or retry, drop
//	    retries: 1      # of retry
//	    max_age: 1ms    # older messages are not sent
//	  - name: camera
//	    priority: 2
//	    size: 2MiB
//	    part: 64KiB     # or split: [1MiB, 1MiB]
//	    after: grab     # instead of a period
//	  - name: log
//	    size: 64KiB
//	    burst: 2MiB     # a token bucket instead of a period: bytes
//	    rate: 100Mb/s
//
// With the key classes, the traffic classes of the device order the messages, instead of the
// scheduler. The class of a flow is its priority, and its messages have no parts but the preemption
// points of the class:
//
//	classes:
//	  0: {preempt: 16KiB} # packet (if missing), end, or a size
//
// # Reading order
//
//   - plan.go: reading a description.
//   - values.go: sizes, rates and durations.
//   - classes.go: traffic classes.
//   - chain.go: tasks and flows that activate each other.
//   - timeline.go, svg.go: how flows share an ideal link.
//   - run.go, graph.go, measure.go: running the tasks of a description, and sending its messages.
//   - serve.go: receiving them on another host.
package flowplan
