// Package flow sends messages by priority and in time: tasks that are activated by timers and data,
// channels between them, and a send and receive layer on verbs. It implements H. Abaza et al.,
// "RDMA-Based Deterministic Communication Architecture for Autonomous Driving", 2023, with the
// task and channel model of DLR's Tasking Framework.
//
// # Send and receive layer
//
// A Layer belongs to one device. Layer.Dial connects a Sender to the Receiver that Layer.Listen and
// Listener.Accept return. Sender.Send returns when a message is in the receiver's memory;
// Receiver.Receive waits for the next one. Nothing more is needed to use the layer without the
// scheduler.
//
// The zero ChannelConfig.Overflow suits sensors, where only new messages count: a Receiver that is
// slower than its Sender loses the oldest messages (DropOldest), and has only 3 slots
// (DefaultSlots). For a stream, of which every message counts, choose Refuse in
// ReceiverConfig.Channel: then the Sender waits.
//
// # Channels, tasks and inputs
//
// A Channel is a buffer of a few messages in registered memory. A program writes it with
// Channel.Write, or without a copy with Channel.Reserve and Channel.Push. The channel of a Receiver
// is written by the peer. Any number of tasks read a channel without copies, each at its own rate:
// with the mode Each all messages, with Latest the newest one. When all slots are in use, the
// channel gives up the oldest message (DropOldest), or its writer has to wait (Refuse).
//
// A Scheduler has two kinds of tasks: those of Scheduler.Task run a function, those of
// Scheduler.SendTask send the messages of a channel. Several tasks that send the same channel give
// it several receivers. A task is activated by its inputs: timers (Scheduler.Timer), events
// (Scheduler.Event) and channels. By default all inputs are needed; an input that is Final, or any
// with TaskConfig.Any, suffices alone, and one that is Optional is not needed. Input.Threshold is
// how many arrivals an input needs. Arrivals beyond it are lost when the task runs, except on
// Synchron inputs.
//
// # Order
//
// The activated task with the highest priority runs first, and among equals the one that was
// activated first. Nothing that runs is interrupted. A long message is split at fixed points
// (SendConfig.Split, SendConfig.Part): between two parts, messages of higher priorities are sent.
// So a message waits for at most SchedulerConfig.InFlight parts of lower priorities.
//
// The device sends the packets of the queue pairs of a traffic class in turns. Therefore the
// scheduler gives it few parts at a time. SenderConfig.Class is the traffic class of a Sender: the
// device sends packets of higher classes first, and marks them for switches (roce.ClassMap).
//
// # Checks and deadlines
//
// A message that is older than SendConfig.MaxAge, or that SendConfig.Check refuses, is not sent. A
// deadline runs from the activation of a task until its message is in the receiver's memory, and
// then stops. A task that exceeds it is reported; it continues, is sent again, or is dropped
// (Warn, Retry, Drop). SendConfig.Done and NotDone activate tasks with the result.
//
// A receiver whose slots are all in use delays only its own messages. Work that is late stays
// behind work of higher priorities. It is counted (Task.Stats) and reported with its name
// (Scheduler.Reports): deadlines that are exceeded, timers that fire although their task has not
// finished, messages that were refused or lost. Messages that a reader has missed are counted.
//
// # Worst-case response times
//
// Bound computes the longest time that each Flow of a Link can take, from its period or token
// bucket, its priority and its parts. Admit compares the bounds with deadlines and names the flows
// that do not fit. The bounds hold without packet loss, if nothing else uses the link, receivers
// release their messages in time, and the processors keep up: the scheduler of an operating system
// that is not a real-time system gives no guarantee. "gorxe flow check" does this for a description
// in a file, and "gorxe flow run" compares bounds with what it observes.
//
// With Link.Points the bounds are those of the device's traffic classes, which interrupt messages
// after any packet. To leave the order to the classes, send without a Scheduler, or give each flow
// a Layer of its own: a Scheduler sends on all its layers at the same time.
//
// # Virtual time
//
// With SchedulerConfig.Clock, LayerConfig.Clock and devices with roce.Expert.Clock, nothing runs
// but what calls Scheduler.Progress, and a schedule replays exactly. A Scheduler is a node of
// loopback.Sim. Run.Hold models the time that a function takes.
//
// # Wire format
//
// Each Sender has an RC queue pair. A message is a header of 32 bytes (number, time, length) and
// its data, written by RDMA WRITEs, one for each part, into a free slot of the receiver's memory.
// The last one has immediate data, the slot. The receiver returns a slot by an empty SEND with the
// slot as immediate data. A sender that stops in the middle of a message uses its slot for the next
// one.
//
// # Misbehaving peers
//
// A sender can write only the memory of its channel. It can change a message while a task reads it,
// so a program that does not trust its peer copies messages before it checks them. A slot that is
// in use, a slot number or a length out of range ends the connection with ErrPeer.
//
// # Reading order
//
// For maintainers:
//
//   - config.go, hello.go: what programs configure; the agreement of both sides.
//   - layer.go: a layer and its completions.
//   - channel.go, reader.go: messages and their readers.
//   - sender.go, receiver.go, listen.go: connections.
//   - scheduler.go, task.go, send.go: what the scheduler runs.
//   - run.go: how it runs: virtual time, or goroutines.
//   - report.go: what is late.
//   - model.go, bound.go, admit.go: worst-case response times.
//
// Package core decides which task runs.
package flow
