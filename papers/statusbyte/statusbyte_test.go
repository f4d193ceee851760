package statusbyte

import (
	"math"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/papers/kit"
)

// Scripts rely on these names.
func TestNames(t *testing.T) {
	have := Names()
	for _, want := range []string{
		"sync_latency_3blocks", "sync_latency_64blocks", "latency_64B", "latency_4KiB",
		"latency_8MiB",
		"latency_22MiB", "throughput_64B", "throughput_256B", "throughput_8MiB", "throughput_22MiB",
		"sender_cpu", "retained_block", "cameras12_throughput_cv", "cameras12_cpu",
		"cameras12_memory",
	} {
		if !slices.Contains(have, want) {
			t.Errorf("no result is called %s", want)
		}
	}
}

// The smallest queues follow from the mechanism, so they are the same on any machine.
func TestMinQueues(t *testing.T) {
	d, err := openDevices(kit.Memory, []int{0, 0}, manual, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = d.Close() }()
	m, err := d.minQueues(t.Context(), statusByte)
	if want := (minQueues{sendQP: 2, sendCQ: 1, recvQP: 0, recvCQ: 1}); err != nil || m != want {
		t.Errorf("minQueues() = %+v, %v, want %+v", m, err, want)
	}
}

// The throughput of a period refers to the time until its last arrival.
func TestRates(t *testing.T) {
	const ms = 1_000_000
	a := arrivals{at: []int64{50 * ms, 5 * ms, 2 * ms, 42 * ms}}
	at, rate := a.rates(0, 0, 80*ms)
	want := []float64{2 * cameraFrame / 5e3, 2 * cameraFrame / 10e3}
	if len(rate) != 2 || at[1] != 40 || math.Abs(rate[0]-want[0]) > 1e-6 ||
		math.Abs(rate[1]-want[1]) > 1e-6 {
		t.Errorf("rates() = %v, %v, want %v at 0 and 40 ms", at, rate, want)
	}
}

func TestRemaining(t *testing.T) {
	bins := make([]float64, int(retainEnd/retainBin))
	for i := range bins {
		if bins[i] = 100; i >= int(retainFrom/retainBin) && i < int(retainTo/retainBin) {
			bins[i] = 88
		}
	}
	if got := remaining(bins); math.Abs(got-88) > 1e-6 {
		t.Errorf("remaining() = %v, want 88", got)
	}
}
