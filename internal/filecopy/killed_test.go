package filecopy_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// A child process copies from one directory to the other if these variables are set.
const (
	childFrom = "GORXE_COPY_FROM"
	childTo   = "GORXE_COPY_TO"
)

func TestMain(m *testing.M) {
	if from := os.Getenv(childFrom); from != "" {
		fmt.Println(copyTree(from, os.Getenv(childTo)))
		return
	}
	os.Exit(m.Run())
}

// copyTree copies the contents of a directory, at a limited rate.
func copyTree(from, to string) error {
	p, err := source.Open(from + "/")
	if err != nil {
		return err
	}
	dir, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	a, b := filecopytest.New(filecopytest.Options{})
	done := make(chan error)
	go func() {
		_, err := sink.New(b, sink.Config{Dir: dir, Delete: true}).Run(background())
		done <- err
	}()
	c := source.Config{Paths: []*source.Path{p}, Limit: 60 << 20}
	if _, err := source.New(a, 64<<10, c).Run(background()); err != nil {
		return err
	}
	return <-done
}

// Processes that are killed at random moments never leave an incomplete file under its name, and in
// the end everything arrives and nothing is left over.
func TestKilledProcesses(t *testing.T) {
	j := newJob(t)
	for i := range 3 {
		write(t, fmt.Sprintf("%s/large%d", j.from, i), 8<<20, uint64(i))
	}
	for i := range 200 {
		write(t, fmt.Sprintf("%s/d%d/f%d", j.from, i%5, i), i*100, uint64(i))
	}
	want := tree(t, j.from)
	exe, err := os.Executable()
	must(t, err)
	r := rand.New(rand.NewPCG(1, 1))
	for range 5 {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), childFrom+"="+j.from, childTo+"="+j.to)
		must(t, cmd.Start())
		time.Sleep(time.Duration(20+r.IntN(200)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		for name, text := range tree(t, j.to) {
			if info, err := os.Lstat(j.to + "/" + name); err != nil || !info.Mode().IsRegular() ||
				isTemporary(name) {
				continue
			}
			if text != want[name] {
				t.Fatalf("%s is %q after a process was killed, want %q", name, text, want[name])
			}
		}
	}
	j.sink.Delete = true
	j.ok()
	equal(t, j.from, j.to)
}
