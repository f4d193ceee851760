//go:build race

package mr

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// racePrograms are programs that the race detector must report (caught) or must not report. Each
// runs in its own process, because a report fails the test.
var racePrograms = []struct {
	name   string
	caught bool
	run    func(*MR)
}{
	{"polls with an accessor", false, func(m *MR) {
		go CopyIn(m.Bytes(), full(m.Len()))
		for m.Load8(m.Len()-1) == 0 {
		}
		_ = m.Bytes()[0]
	}},
	{"polls with a plain load", true, func(m *MR) {
		go CopyIn(m.Bytes(), full(m.Len()))
		for range 100 {
			if m.Bytes()[m.Len()-1] != 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}},
	{"reads the data without checking the status", true, func(m *MR) {
		go CopyIn(m.Bytes(), full(m.Len()))
		time.Sleep(50 * time.Millisecond)
		_ = m.Bytes()[0]
	}},
	{"reuses the memory while a packet still writes it", true, func(m *MR) {
		b, _ := m.pd.table.CheckRemote(m.pd, m.RKey(), 0, 8, RemoteWrite)
		go func() {
			time.Sleep(50 * time.Millisecond)
			CopyIn(b, full(8))
		}()
		_ = m.pd.table.Deregister(m)
		m.Bytes()[0] = 1
		time.Sleep(100 * time.Millisecond)
	}},
	{"uses plain accesses next to a byte that a peer writes", false, func(m *MR) {
		go CopyIn(m.Bytes()[17:18], full(1))
		for m.Load8(17) == 0 {
			m.Bytes()[16]++
			_ = m.Bytes()[18]
			m.Bytes()[19]++
		}
	}},
	{"stores next to a byte that a peer reads", false, func(m *MR) {
		done := make(chan bool)
		go func() {
			var b [1]byte
			for range 1000 {
				CopyOut(b[:], m.Bytes()[17:18])
			}
			close(done)
		}()
		for range 1000 {
			m.Store8(17, 1)
			m.Bytes()[16]++
		}
		<-done
	}},
}

func full(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 0xff
	}
	return b
}

func TestRaceDetector(t *testing.T) {
	const env = "GORXE_MR_RACE_PROGRAM"
	if name := os.Getenv(env); name != "" {
		for _, p := range racePrograms {
			if p.name == name {
				tab, pd := newTable(t, Config{})
				p.run(register(t, tab, pd, words(64), 0, allRemote|ZeroBased))
			}
		}
		return
	}
	for _, p := range racePrograms {
		cmd := exec.Command(os.Args[0], "-test.run=^TestRaceDetector$")
		cmd.Env = append(os.Environ(), env+"="+p.name)
		out, err := cmd.CombinedOutput()
		caught := strings.Contains(string(out), "DATA RACE")
		if caught != p.caught || caught != (err != nil) {
			t.Errorf("a program that %s: caught %v, want %v (%v)\n%s", p.name, caught, p.caught,
				err, out)
		}
	}
}
