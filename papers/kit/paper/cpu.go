package paper

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/papers/kit"
)

// TwoCPUs checks the CPUs that the user chose for the two sides; nil stands for the first two.
func TwoCPUs(chosen []int) ([]int, error) {
	allowed, err := kit.AllowedCPUs()
	if err != nil {
		return nil, err
	}
	if chosen == nil {
		return []int{allowed[0], allowed[min(1, len(allowed)-1)]}, nil
	}
	if len(chosen) != 2 {
		return nil, cli.Usagef("--cpus takes two CPUs, as in --cpus %d,%d", allowed[0], allowed[len(allowed)-1])
	}
	for _, c := range chosen {
		if !slices.Contains(allowed, c) {
			return nil, cli.Usagef("this process may not use CPU %d: choose from %s", c, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(allowed)), ","), "[]"))
		}
	}
	return chosen, nil
}

// ProcessTime is the CPU time that this process has used, in user space and kernel.
func ProcessTime() time.Duration { return usage(unix.RUSAGE_SELF) }

// ThreadTime is the same of the calling thread.
func ThreadTime() time.Duration { return usage(unix.RUSAGE_THREAD) }

func usage(who int) time.Duration {
	var u unix.Rusage
	if unix.Getrusage(who, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Resident is how many bytes of memory this process holds (RssAnon and RssShmem of /proc/self/status: its own memory, not
// the program's text); 0 if that cannot be read.
func Resident() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	sum := int64(0)
	for line := range bytes.Lines(text) {
		name, rest, ok := bytes.Cut(line, []byte(":"))
		if !ok || (string(name) != "RssAnon" && string(name) != "RssShmem") {
			continue
		}
		if f := bytes.Fields(rest); len(f) > 0 {
			kb, _ := strconv.ParseInt(string(f[0]), 10, 64) // the kernel writes a number
			sum += kb << 10
		}
	}
	return sum
}
