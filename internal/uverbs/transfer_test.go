package uverbs

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/mr"
	"golang.org/x/sys/unix"
)

// Stores are written in both ways, also those after one to memory that does not exist.
func TestFlush(t *testing.T) {
	page := int(pageSize)
	for _, on := range []bool{false, true} {
		s, err := openSpace(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		defer s.close()
		if !s.fast.on {
			t.Fatal("process_vm_writev is not used for an own process")
		}
		s.fast.on = on
		file, err := unix.MemfdCreate("memory", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(file)
		if err := unix.Ftruncate(file, int64(3*page)); err != nil {
			t.Fatal(err)
		}
		mem, err := unix.Mmap(file, 0, 5*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Munmap(mem)
		base := mr.AddrOf(mem)
		want := make([]byte, 5*page)
		put := func(off, n int, ordered bool) {
			b := bytes.Repeat([]byte{byte(len(s.dirty) + 1)}, n)
			copy(want[off:], b)
			s.add(b, base+uint64(off), ordered)
		}
		put(0, 100, false) // contiguous, like the packets of a message
		put(100, 100, false)
		put(200, 101, true)
		put(301, 3, true)
		put(400, 8, true)
		put(400, 4, true)
		put(3*page-130, 80, false)
		put(3*page-50, 100, true) // contiguous with the one before it, but its end has no memory
		put(3*page+50, 20, false)
		put(2*page, 1000, true)
		put(4*page-7, 10, false)
		put(page, 1, false)
		s.flush()
		if s.fast.on != on || len(s.dirty) != 0 {
			t.Errorf("after flush: on = %v, %d stores", s.fast.on, len(s.dirty))
		}
		if !bytes.Equal(mem[:3*page], want[:3*page]) {
			t.Errorf("fast = %v: the memory is not what was stored", on)
		}
	}
}

// More stores than one system call can write are written in order.
func TestManyStores(t *testing.T) {
	s, err := openSpace(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	mem := make([]byte, 3*maxDirty*16)
	want := make([]byte, len(mem))
	for i := range want {
		want[i] = byte(i / 16 * 7)
	}
	for i := 0; i < len(mem); i += 16 {
		s.add(want[i:i+16], mr.AddrOf(mem)+uint64(i), true)
	}
	s.flush()
	if !bytes.Equal(mem, want) {
		t.Error("the memory is not what was stored")
	}
}

// A process that has ended, or will execute another program, is not accessed by its PID.
func TestEndedProcess(t *testing.T) {
	p := pairOf(t)
	start := func() (*exec.Cmd, *space) {
		c := exec.Command("sleep", "600")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		s, err := openSpace(c.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		if !s.fast.usable() {
			t.Fatal("usable() = false for a process of the same user")
		}
		return c, s
	}
	c, s := start()
	_ = c.Process.Kill()
	_ = c.Wait()
	if s.fast.usable() {
		t.Error("usable() = true after the process has ended")
	}
	c, s = start()
	p.dev.mu.Lock()
	p.dev.spaces[c.Process.Pid] = []*space{s}
	p.dev.mu.Unlock()
	p.dev.Executes(c.Process.Pid + 1)
	if !s.fast.usable() {
		t.Error("usable() = false after the exec of another process")
	}
	p.dev.Executes(c.Process.Pid)
	if s.fast.usable() {
		t.Error("usable() = true after the exec of the process")
	}
	p.dev.forget(c.Process.Pid, s)
	if n := len(p.dev.spaces); n != 0 {
		t.Errorf("%d processes have spaces at the end, want 0", n)
	}
}

// Memory is loaded in whole pages, and again in the next step, after a store, and if another part
// is needed.
func TestLoaded(t *testing.T) {
	p := pairOf(t)
	s, err := openSpace(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	page := int(pageSize)
	mem := make([]byte, 5*page)
	mem = mem[-mr.AddrOf(mem)%pageSize:][:4*page] // starts at a page
	m, err := newMirror(p.dev, s, mr.AddrOf(mem), uint64(len(mem)))
	if err != nil {
		t.Fatal(err)
	}
	defer m.unmap()
	p.dev.do(func() {
		load := func(from, to int, want byte) {
			t.Helper()
			if !m.Load(m.mem[from:to]) || m.mem[from] != want || m.mem[to-1] != want {
				t.Errorf("Load(%d, %d) has %d and %d, want %d", from, to, m.mem[from], m.mem[to-1],
					want)
			}
		}
		fill := func(v byte) {
			for i := range mem {
				mem[i] = v
			}
		}
		fill(1)
		load(0, 100, 1)
		fill(2)
		load(0, 100, 1)
		load(10, 20, 1)
		load(page-1, page, 1)
		load(page-1, page+1, 2)
		load(0, 2*page, 2)
		fill(3)
		load(0, 2*page, 2)
		load(100, 101+page, 2)
		load(2*page, 2*page+1, 3)
		load(0, 50, 3)
		fill(4)
		p.dev.Settle(0)
		load(0, 50, 4)
		fill(6)
		p.dev.Doorbells(false, false) // a step begins
		load(0, 50, 6)
		fill(5)
		m.Store(m.mem[200:208], []byte("abcdefgh"), true)
		load(0, 50, 5)
		if string(mem[200:208]) != "abcdefgh" {
			t.Error("a load does not see the store before it")
		}
	})
	part, err := newMirror(p.dev, s, mr.AddrOf(mem)+100, pageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer part.unmap()
	p.dev.do(func() {
		if !part.Load(part.mem[:1]) || !part.Load(part.mem[page-1:]) ||
			!bytes.Equal(part.mem, mem[100:100+page]) {
			t.Error("the ends of a region that does not start at a page differ")
		}
	})
}

// pairOf returns one of two programs.
func pairOf(t *testing.T) *program {
	t.Helper()
	return pair(t, testbed.Config{})[0]
}
