package kit

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/cli"
)

// maxCPU is the number of CPUs that the affinity mask of unix.CPUSet covers.
const maxCPU = 1024

// AllowedCPUs returns the CPUs that this process may use, at least one.
func AllowedCPUs() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("read the CPU affinity of this process: %w", err)
	}
	var list []int
	for i := range maxCPU {
		if set.IsSet(i) {
			list = append(list, i)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("this process may only use CPUs beyond %d: choose others with taskset", maxCPU-1)
	}
	return list, nil
}

// TwoCPUs checks the CPUs that the user chose for the two sides of a benchmark. nil means the first
// two that the process may use, or the same one twice if it may use only one.
func TwoCPUs(chosen []int) ([]int, error) {
	allowed, err := AllowedCPUs()
	if err != nil {
		return nil, err
	}
	if chosen == nil {
		return []int{allowed[0], allowed[min(1, len(allowed)-1)]}, nil
	}
	if len(chosen) != 2 {
		return nil, cli.Usagef("--cpus takes two CPUs, as in --cpus %d,%d", allowed[0],
			allowed[len(allowed)-1])
	}
	for _, c := range chosen {
		if !slices.Contains(allowed, c) {
			list := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(allowed)), ","), "[]")
			return nil, cli.Usagef("this process may not use CPU %d: choose from %s", c, list)
		}
	}
	return chosen, nil
}

// pin ties the calling thread to a CPU. A negative number leaves the thread free.
func pin(cpu int) error {
	if cpu < 0 {
		return nil
	}
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin a thread to CPU %d: %w: choose other CPUs with --cpus", cpu, err)
	}
	return nil
}

// GoOnCPU runs f in a new goroutine on a separate thread, pinned to cpu unless that is
// negative, sends its error on the returned channel and closes the channel. The thread ends with
// f.
func GoOnCPU(cpu int, f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		// Without UnlockOSThread the runtime destroys the thread, and its affinity with it.
		runtime.LockOSThread()
		defer close(done)
		if err := pin(cpu); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return done
}

// OnCPU runs f as GoOnCPU does and waits for it.
func OnCPU(cpu int, f func() error) error { return <-GoOnCPU(cpu, f) }

// ProcessTime returns the CPU time that this process has used, in user space and in the kernel.
func ProcessTime() time.Duration { return usage(unix.RUSAGE_SELF) }

// ThreadTime returns the CPU time that the calling thread has used, in user space and in the
// kernel.
func ThreadTime() time.Duration { return usage(unix.RUSAGE_THREAD) }

func usage(who int) time.Duration {
	var u unix.Rusage
	if unix.Getrusage(who, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// SchedTime returns the time that a thread has run, from its schedstat file below /proc. It
// returns 0 if the file cannot be read.
func SchedTime(schedstat string) time.Duration {
	text, err := os.ReadFile(schedstat)
	if err != nil {
		return 0
	}
	first, _, _ := bytes.Cut(text, []byte(" "))
	ns, _ := strconv.ParseInt(string(first), 10, 64) // the kernel writes a decimal number
	return time.Duration(ns)
}

// Softirqs are the schedstat files of the kernel threads that do network work under high load.
// Their time belongs to a measurement.
type Softirqs []string

// FindSoftirqs finds these threads.
func FindSoftirqs() (list Softirqs) {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm") // the pattern is valid
	for _, c := range comms {
		name, err := os.ReadFile(c)
		if err == nil && bytes.HasPrefix(name, []byte("ksoftirqd/")) {
			list = append(list, filepath.Join(filepath.Dir(c), "schedstat"))
		}
	}
	return list
}

// Time returns the CPU time of the threads.
func (s Softirqs) Time() (sum time.Duration) {
	for _, file := range s {
		sum += SchedTime(file)
	}
	return sum
}

// Resident returns how many bytes of memory this process occupies (RssAnon and RssShmem of
// /proc/self/status, so without the program's text), or 0 if the file cannot be read.
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
			kib, _ := strconv.ParseInt(string(f[0]), 10, 64) // the kernel writes a decimal number
			sum += kib << 10
		}
	}
	return sum
}

// ErrIdle means that nothing arrived during a measurement.
var ErrIdle = errors.New("nothing arrived during the measurement: " +
	"end other programs, or choose a longer --duration")
