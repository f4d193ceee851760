package main

// cost returns the CPU time of a run's messages: the time and messages of a short run are
// subtracted. It is 0, for unknown, if the short run took more than half as long, because the
// difference would be noise.
func (u cpuUnit) cost(f *figure, run, short *trial) float64 {
	messages, seconds := float64(run.messages-short.messages), run.cpu-short.cpu
	if messages <= 0 || seconds <= 0 || short.cpu > run.cpu/2 {
		return 0
	}
	if u.perMessage {
		return seconds * 1e6 / messages
	}
	return seconds * 1e9 / (messages * float64(f.bytes))
}
