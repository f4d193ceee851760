package main

import (
	"fmt"
	"strconv"
	"strings"
)

// ticksPerSecond is the unit of /proc/stat (USER_HZ, the same on all of Linux's architectures that matter here).
const ticksPerSecond = 100

// parseStat takes the busy CPU seconds since boot from the first line of /proc/stat (proc(5)): user, nice, system, irq and
// softirq, which is where a kernel NIC works; not idle, iowait and steal. Guest time is part of user.
func parseStat(text string) (float64, error) {
	line, _, _ := strings.Cut(text, "\n")
	w := strings.Fields(line)
	if len(w) < 8 || w[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat of the guest begins with %q", line)
	}
	var busy int64
	for _, i := range []int{1, 2, 3, 6, 7} {
		n, err := strconv.ParseInt(w[i], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat of the guest: %w", err)
		}
		busy += n
	}
	return float64(busy) / ticksPerSecond, nil
}

// cost is the CPU time of a run's messages alone: what a short run took, for starting and for its few messages, is taken
// off, as are those messages. It is 0, for unknown, if the short run took more than half as much: on a loaded host, where
// the guests' clocks count what others took, the difference would be noise.
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
