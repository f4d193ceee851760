package qp

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// IBA 9.7.5.1.3, 9.4.4: a READ is answered with FIRST, MIDDLE and LAST packets, or with ONLY. Its
// PSNs start at the request's, and the next request follows the last one.
func TestReadResponses(t *testing.T) {
	for _, c := range []struct {
		n    int
		want []string
	}{
		{0, []string{"Only +0 msn=1"}},
		{1, []string{"Only +0 msn=1 1B"}},
		{256, []string{"Only +0 msn=1 256B"}},
		{257, []string{"First +0 msn=1 256B", "Last +1 msn=1 1B"}},
		{768, []string{"First +0 msn=1 256B", "Middle +1 256B", "Last +2 msn=1 256B"}},
		{770, []string{"First +0 msn=1 256B", "Middle +1 256B", "Middle +2 256B",
			"Last +3 msn=1 2B"}},
	} {
		k := newTalk(t, RC)
		copy(k.mem[100:], seq(1000))
		k.say(k.read(0, 100, c.n))
		var got []string
		data := ""
		for _, p := range k.listen() {
			got = append(got, k.heard(p)[len("RDMA READ response "):])
			data += string(p.Payload)
		}
		compare(t, fmt.Sprintf("READ of %d bytes", c.n), got, c.want)
		k.equal("data", data, string(seq(1000)[:c.n]))
		k.say(k.write(len(c.want), seq(1)))
		k.hears(fmt.Sprintf("ACK %+d msn=2", len(c.want)))
	}
}

// IBA 9.7.5.1.3: a duplicate READ is executed again with the current memory. A retry from the
// middle, with PSN and address advanced, is answered from there. Its answer is a separate message,
// which starts with FIRST.
func TestDuplicateRead(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.read(0, 0, 600))
	k.hears("RDMA READ response First +0 msn=1 256B", "RDMA READ response Middle +1 256B",
		"RDMA READ response Last +2 msn=1 88B")
	copy(k.mem, seq(600))
	k.say(k.read(0, 0, 600))
	k.equal("new data", string(k.listen()[0].Payload), string(seq(600)[:256]))
	k.say(k.read(1, 256, 344))
	k.hears("RDMA READ response First +1 msn=1 256B", "RDMA READ response Last +2 msn=1 88B")
	k.say(k.read(2, 512, 88))
	ps := k.listen()
	k.equal("last part", k.heard(ps[0])+string(ps[0].Payload),
		"RDMA READ response Only +2 msn=1 88B"+string(seq(600)[512:]))
	k.equal("expected PSN", k.q.epsn&psnMask, uint64(k.base.Add(3)))
}

// A duplicate READ is checked like any other, and must not exceed the earlier request. If a check
// fails, it is dropped without harm to the QP.
func TestInvalidDuplicateRead(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(k *talk, p *pkt)
	}{
		{"wrong key", func(_ *talk, p *pkt) { p.key ^= 0xff }},
		{"out of bounds", func(k *talk, p *pkt) { p.va = k.at(len(k.mem) - 1) }},
		{"longer than the first time", func(_ *talk, p *pkt) { p.n = 600 }},
		{"longer than 2^31", func(_ *talk, p *pkt) { p.n = 1<<31 + 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			k.say(k.read(0, 0, 300))
			k.listen()
			p := k.read(0, 0, 300)
			c.edit(k, &p)
			k.say(p)
			k.hears()
			k.is(RTS)
			k.equal("drops", k.Counters().DropReplay, uint64(1))
		})
	}
}

// A duplicate that arrives while its answer is being sent sets the answer back. If the answer has
// not started, nothing changes.
func TestDuplicateReadWhileAnswering(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.read(0, 0, 600), k.read(0, 0, 600))
	k.hears("RDMA READ response First +0 msn=1 256B", "RDMA READ response Middle +1 256B",
		"RDMA READ response Last +2 msn=1 88B")

	k = newTalk(t, RC)
	k.say(k.read(0, 0, 600), k.read(3, 0, 10))
	var buf [4096]byte
	for range 2 {
		k.PollTransmit(k.now, buf[:])
	}
	k.say(k.read(1, 256, 344))
	k.hears("RDMA READ response Middle +1 256B", "RDMA READ response Last +2 msn=1 88B",
		"RDMA READ response Only +3 msn=2 10B")
}

// A duplicate of an earlier READ goes before the pending answers: the requester went back to it,
// and will request the rest after it.
func TestDuplicateReadOvertakes(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.read(0, 0, 10))
	k.listen()
	k.say(k.read(1, 0, 600))
	var buf [4096]byte
	k.PollTransmit(k.now, buf[:])
	k.say(k.read(0, 0, 10))
	k.hears("RDMA READ response Only +0 msn=2 10B", "RDMA READ response Middle +2 256B",
		"RDMA READ response Last +3 msn=2 88B")
}

// However many duplicates arrive, the number of pending answers and the memory are bounded.
func TestDuplicateReadsAreBounded(t *testing.T) {
	k := newTalk(t, RC) // 4 outstanding
	for i := range 4 {
		k.say(k.read(i, 0, 1))
	}
	k.listen()
	for i := range 4 {
		k.say(k.read(4+i, 0, 1))
	}
	k.listen()
	for i := range 8 {
		k.say(k.read(i, 0, 1))
	}
	k.equal("waiting", len(k.q.answers.list), 8)
	k.equal("capacity", cap(k.q.answers.list), 8)
	k.say(k.read(8, 0, 1)) // no space for a fresh one: dropped, not refused
	k.equal("answers", len(k.listen()), 8)
	k.is(RTS)
	k.say(k.read(8, 0, 1))
	k.hears("RDMA READ response Only +8 msn=9 1B")
}

// IBA 9.7.5.2.4: if a region is deregistered between request and answer, the READ ends with a
// remote access error at the first packet without memory, and the QP fails.
func TestDeregisterDuringReadResponse(t *testing.T) {
	k := newTalk(t, RC)
	m, mem := k.region(k.pd, 4096, mr.LocalWrite|mr.RemoteRead)
	copy(mem, seq(4096))
	p := k.read(0, 0, 600)
	p.va, p.key = m.Addr(), bth.RKey(m.RKey())
	k.say(p, k.read(3, 0, 10))
	var buf [4096]byte
	if tx := k.PollTransmit(k.now, buf[:]); tx == nil {
		t.Fatal("no first response")
	}
	must(t, k.mrs.Deregister(m))
	k.hears("NAK remote access error +1 msn=2")
	k.raises("QP_ACCESS_ERR")
	k.is(Err)
}

// A peer that has the answer to its READ may invalidate the key. If a duplicate of the READ is
// still waiting for its turn to be answered then, it is dropped without harm to the QP.
func TestInvalidateBeforeDuplicateReadResponse(t *testing.T) {
	k := newTalk(t, RC)
	m, _ := k.region(k.pd, 4096, mr.LocalWrite|mr.RemoteRead)
	p := k.read(0, 0, 600)
	p.va, p.key = m.Addr(), bth.RKey(m.RKey())
	k.say(p)
	k.listen()
	k.say(p, k.read(3, 0, 10))
	must(t, k.mrs.Deregister(m))
	k.hears("RDMA READ response Only +3 msn=2 10B")
	k.is(RTS)
	k.equal("drops", k.Counters().DropReplay, uint64(1))
}

// A READ of 2^31 bytes takes 2^23 PSNs at path MTU 256, half of all PSNs. One more byte is refused.
func TestReadOf2GiB(t *testing.T) {
	k := newTalk(t, RC)
	k.say(pkt{op: bth.RCReadRequest, va: k.at(0), key: k.rkey(), n: 1<<31 + 1})
	k.refused(invalid, "QP_REQ_ERR")
	k = newTalk(t, RC)
	k.say(pkt{op: bth.RCReadRequest, va: k.at(0), key: k.rkey(), n: 1 << 31})
	k.refused(access, "QP_ACCESS_ERR") // the region is smaller
}

// The requester accepts both styles of answers to a retry: MIDDLE and LAST, as the kernel's rxe
// sends them, or FIRST and LAST, as the architecture requires. PSN and length must be right.
func TestReadRetryStyles(t *testing.T) {
	for _, style := range [][2]bth.Opcode{
		{bth.RCReadResponseMiddle, bth.RCReadResponseLast},
		{bth.RCReadResponseFirst, bth.RCReadResponseLast},
	} {
		k := newTalk(t, RC)
		data := seq(1000)
		k.post(SendWR{ID: 1, Op: OpRead, Flags: Signaled, SGEs: []SGE{k.sge(0, 1000)},
			RemoteAddr: 0x1000, RKey: 9})
		k.hears("RDMA READ Request +0 dma=1000 ask")
		k.say(pkt{op: bth.RCReadResponseFirst, psn: 0, syndrome: bth.ACKNoLimit, data: data[:256]},
			pkt{op: bth.RCReadResponseMiddle, psn: 1, data: data[256:512]})
		k.now += initialRTO + second/100 // the rest is lost; a probe or timeout asks for it
		ps := k.listen()
		k.equal("retry", k.heard(ps[0]), "RDMA READ Request +2 dma=488 ask")
		k.equal("retry's address", ps[0].RETH().VA(), uint64(0x1000+512))
		k.say(pkt{op: style[0], psn: 2, syndrome: bth.ACKNoLimit, data: data[512:768]},
			pkt{op: style[1], psn: 3, syndrome: bth.ACKNoLimit, data: data[768:]})
		k.completes("1 success RDMA_READ 1000B")
		k.equal("data", string(k.mem[:1000]), string(data))
	}
}

// It also accepts a responder that answers the retry from the first PSN again (a third style that
// exists). It skips what it already has.
func TestReadRetryAnsweredFromTheStart(t *testing.T) {
	k := newTalk(t, RC)
	data := seq(700)
	k.post(SendWR{ID: 1, Op: OpRead, Flags: Signaled, SGEs: []SGE{k.sge(0, 700)},
		RemoteAddr: 0x1000, RKey: 9})
	k.listen()
	k.say(pkt{op: bth.RCReadResponseFirst, psn: 0, syndrome: bth.ACKNoLimit, data: data[:256]})
	for i, op := range []bth.Opcode{bth.RCReadResponseFirst, bth.RCReadResponseMiddle,
		bth.RCReadResponseLast} {
		k.say(pkt{op: op, psn: i, syndrome: bth.ACKNoLimit,
			data: data[i*256 : min(i*256+256, 700)]})
	}
	k.completes("1 success RDMA_READ 700B")
	k.equal("data", string(k.mem[:700]), string(data))
	k.equal("ghosts", k.Counters().DropGhost, uint64(1))
}

// IBA 9.9.2: a response of the wrong length is a bad response: the READ fails, the QP goes to ERR,
// and no byte outside of the SGE changes.
func TestReadResponseOfWrongLength(t *testing.T) {
	for _, n := range []int{0, 1, 255, 257, 300} {
		k := newTalk(t, RC)
		k.post(SendWR{ID: 1, Op: OpRead, SGEs: []SGE{k.sge(0, 400)}, RemoteAddr: 0x1000, RKey: 9},
			SendWR{ID: 2, Op: OpSend})
		k.listen()
		k.snapshot()
		k.say(pkt{op: bth.RCReadResponseFirst, psn: 0, syndrome: bth.ACKNoLimit, data: seq(n)})
		k.completes("1 bad response error", "2 Work Request Flushed Error")
		k.unchanged()
		k.is(Err)
	}
}

// If the destination is deregistered while the response arrives, the READ ends with a local
// protection error (IBA 9.9.2).
func TestDeregisterReadDestination(t *testing.T) {
	k := newTalk(t, RC)
	m, mem := k.region(k.pd, 1024, mr.LocalWrite)
	k.post(SendWR{ID: 1, Op: OpRead,
		SGEs: []SGE{{Addr: m.Addr(), Length: 600, LKey: bth.LKey(m.LKey())}}, RemoteAddr: 0x1000,
		RKey: 9})
	k.listen()
	k.say(pkt{op: bth.RCReadResponseFirst, psn: 0, syndrome: bth.ACKNoLimit, data: seq(256)})
	must(t, k.mrs.Deregister(m))
	clear(mem)
	k.say(pkt{op: bth.RCReadResponseMiddle, psn: 1, data: seq(256)})
	k.completes("1 local protection error")
	for _, b := range mem {
		k.equal("byte of a deregistered region", b, byte(0))
	}
}

// READs longer than a part are sent as several READ requests in a row (see sendRead). Each byte is
// requested once if nothing is lost.
func TestLongRead(t *testing.T) {
	w := newWorld(t, 3)
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) {
		at.PathMTU = 256
		at.MaxRdAtomic,
			at.MaxDestRdAtomic = 2, 2
	})
	_ = b
	const n = 300_000
	w.ends[1].fill(0, n, 3)
	parts, lost := map[uint64]bool{}, 0
	w.filter = func(from int, p *bth.Packet) bool {
		if p.Info.Op == bth.OpReadRequest {
			parts[p.RETH().VA()] = true
		}
		if from == 1 && w.pkts%97 == 0 {
			lost++
			return false
		}
		return true
	}
	va, key := w.ends[1].remote(0)
	w.post(a, SendWR{ID: 1, Op: OpRead, Flags: Signaled, SGEs: []SGE{w.ends[0].sge(512<<10, n)},
		RemoteAddr: va, RKey: key})
	if wc := w.wc(0); wc.Status != Success || wc.ByteLen != n {
		t.Fatal(wc.short())
	}
	if string(w.ends[0].mem[512<<10:][:n]) != string(w.ends[1].mem[:n]) {
		t.Error("data differs")
	}
	if len(parts) < 10 || lost == 0 {
		t.Errorf("%d different requests, %d responses lost: the test covers nothing", len(parts),
			lost)
	}
}
