package roce_test

import (
	"fmt"
	"log"

	"github.com/gorxe/gorxe/roce"
)

// A record in b's memory that b changes and a reads at any time, without locks: three words and,
// behind them, a version, which is odd while b changes the words.
const (
	recordWords = 3
	versionAt   = 8 * recordWords
	recordLen   = versionAt + 8
)

// change stores n in all words. Each store becomes visible after those before it, because the Store
// methods have release ordering. Plain stores to the words could become visible before the odd
// version.
func change(m *roce.MR, n uint64) {
	version := m.Load64(versionAt)
	m.Store64(versionAt, version+1)
	for i := range recordWords {
		m.Store64(8*i, n)
	}
	m.Store64(versionAt, version+2)
}

// snapshot returns the words of a record that did not change while it was read. The record fits in
// one packet, of which the device reads the last word first: the version. The second READ, with
// Fence, reads the version after the words. If it is the same and even, the words belong together.
func snapshot(h host, remote roce.RemoteBuffer) (words [recordWords]uint64) {
	for {
		err := h.qp.PostSend(
			roce.SendWR{Op: roce.OpRead, SGEs: []roce.SGE{h.mr.SGE(0, recordLen)},
				RemoteAddr: remote.Addr, RKey: remote.RKey},
			roce.SendWR{Op: roce.OpRead, Flags: roce.Fence | roce.Signaled,
				SGEs:       []roce.SGE{h.mr.SGE(recordLen, 8)},
				RemoteAddr: remote.Addr + versionAt, RKey: remote.RKey},
		)
		if err != nil {
			log.Fatal(err)
		}
		if wc := h.wait(); wc.Status != roce.Success {
			log.Fatal(wc.Status)
		}
		version := h.mr.Load64(versionAt)
		if version%2 != 0 || version != h.mr.Load64(recordLen) {
			continue // b changed the record meanwhile: read again
		}
		for i := range words {
			words[i] = h.mr.Load64(8 * i)
		}
		return words
	}
}

// Readers without locks (a seqlock): a reads a record of several words that b changes at the same
// time. See the section Memory of the package documentation for the rules.
func ExampleMR_seqlock() {
	a, b, done := twoHosts(roce.RC)
	defer done()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := uint64(1); ; n++ {
			change(b.mr, n)
			select {
			case <-stop:
				return
			default:
				b.dev.Progress() // yields the processor to the device
			}
		}
	}()
	for range 50 {
		if w := snapshot(a, b.mr.Remote()); w[0] != w[1] || w[1] != w[2] {
			fmt.Println("torn record:", w)
		}
	}
	close(stop)
	<-stopped
	fmt.Println("50 consistent records")
	// Output: 50 consistent records
}
