package source

import (
	"context"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// flushDelay is how long a record waits for others that fill its block.
const flushDelay = 2 * time.Millisecond

// packer packs records into blocks and sends them in order. Several goroutines add records at the
// same time, and fill in the contents of small files while others continue.
type packer struct {
	conn    filecopy.Conn
	session filecopy.Session

	getting sync.Mutex // held while a block is being fetched

	mu     sync.Mutex
	err    error
	open   *pack   // nil: none
	sealed []*pack // to be sent, oldest first
	active int     // goroutines that will add records soon
}

// pack is a block of records.
type pack struct {
	b       *filecopy.Block
	filling int // files whose contents are being read
	sealed  bool
	timer   *time.Timer
}

// space is memory in a pack that is being filled.
type space struct {
	of   *pack
	data []byte
}

// enter notes that the caller will add records soon, until leave.
func (p *packer) enter() {
	p.mu.Lock()
	p.active++
	p.mu.Unlock()
}

// leave ends enter. If nobody else adds records, the block is sent.
func (p *packer) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.active--; p.active == 0 {
		p.seal()
	}
}

// reserve returns space for size bytes, which the caller fills and then commits.
func (p *packer) reserve(ctx context.Context, size int) (space, error) {
	for {
		p.mu.Lock()
		if p.err != nil {
			defer p.mu.Unlock()
			return space{}, p.err
		}
		if o := p.open; o != nil {
			if o.b.Len+size <= len(o.b.Data) {
				s := space{o, o.b.Data[o.b.Len : o.b.Len+size]}
				o.b.Len += size
				o.filling++
				p.mu.Unlock()
				return s, nil
			}
			p.seal()
		}
		p.mu.Unlock()
		if err := p.fetch(ctx); err != nil {
			return space{}, err
		}
	}
}

// fetch gets a block, unless another goroutine has done so.
func (p *packer) fetch(ctx context.Context) error {
	p.getting.Lock()
	defer p.getting.Unlock()
	p.mu.Lock()
	has := p.open != nil
	p.mu.Unlock()
	if has {
		return nil
	}
	b, err := p.conn.GetFree(ctx)
	if err != nil {
		return err
	}
	b.Len, b.Offset = 0, 0
	o := &pack{b: b}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open = o
	o.timer = time.AfterFunc(flushDelay, func() { p.flush(o) })
	return nil
}

// commit ends the filling of a space.
func (p *packer) commit(s space) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s.of.filling--
	if s.of.sealed {
		p.send()
	} else if p.active == 0 {
		p.seal()
	}
}

// add adds a complete record.
func (p *packer) add(ctx context.Context, rec []byte) error {
	s, err := p.reserve(ctx, len(rec))
	if err != nil {
		return err
	}
	copy(s.data, rec)
	p.commit(s)
	return nil
}

// flush sends a pack that has waited long enough.
func (p *packer) flush(o *pack) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open != o {
		return
	}
	if o.b.Len == 0 { // nothing was reserved yet
		o.timer.Reset(flushDelay)
		return
	}
	p.seal()
}

// seal ends the open pack. The caller holds mu.
func (p *packer) seal() {
	o := p.open
	if o == nil || o.b.Len == 0 {
		return
	}
	o.sealed = true
	o.timer.Stop()
	p.open = nil
	p.sealed = append(p.sealed, o)
	p.send()
}

// send sends the sealed packs that are complete, in order. The caller holds mu.
func (p *packer) send() {
	for len(p.sealed) > 0 && p.sealed[0].filling == 0 {
		o := p.sealed[0]
		p.sealed = p.sealed[1:]
		if p.err != nil {
			p.conn.PutFree(o.b)
			continue
		}
		o.b.CRC = extent.Sum(o.b.Data[:o.b.Len])
		if p.err = p.session.Send(o.b); p.err != nil {
			p.conn.PutFree(o.b)
		}
	}
}

// close gives back the open block. No records are added any more.
func (p *packer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o := p.open; o != nil {
		o.timer.Stop()
		p.open = nil
		p.conn.PutFree(o.b)
	}
}

// failure makes a Fail record.
func failure(number uint64, changed bool, err error) []byte {
	return record.AppendFail(nil, &record.Fail{Number: number, Changed: changed, Text: err.Error()})
}
