package accept

import (
	"errors"
	"sync"

	"github.com/gorxe/gorxe/roce"
)

// Pool provides memory for connections that are being accepted. Memory of those that were not
// confirmed is used again, because forged requests would otherwise make the garbage collector
// allocate and clear it all the time. It is safe for concurrent use.
type Pool struct {
	dev  *roce.Device
	size int

	mu     sync.Mutex
	free   []*Memory // at most Max
	closed bool
}

// Memory is allocated on a device and counts as its memory. No peer can access it unless the owner
// registers it again.
type Memory struct {
	pool *Pool
	pd   *roce.PD
	mr   *roce.MR
}

// NewPool returns a pool of memory of size bytes.
func NewPool(dev *roce.Device, size int) *Pool { return &Pool{dev: dev, size: size} }

// Take returns memory, which may contain data of a peer that was not confirmed.
func (p *Pool) Take() (*Memory, error) {
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		m := p.free[n-1]
		p.free = p.free[:n-1]
		p.mu.Unlock()
		return m, nil
	}
	p.mu.Unlock()
	pd, err := p.dev.AllocPD()
	if err != nil {
		return nil, err
	}
	mr, err := pd.AllocMR(p.size, roce.LocalWrite)
	if err != nil {
		return nil, errors.Join(err, pd.Close())
	}
	return &Memory{pool: p, pd: pd, mr: mr}, nil
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return m.mr.Bytes() }

// Return gives memory back that no peer can access anymore.
func (m *Memory) Return() error {
	p := m.pool
	p.mu.Lock()
	keep := !p.closed && len(p.free) < Max
	if keep {
		p.free = append(p.free, m)
	}
	p.mu.Unlock()
	if keep {
		return nil
	}
	return m.Close()
}

// Close frees the memory.
func (m *Memory) Close() error { return errors.Join(m.mr.Close(), m.pd.Close()) }

// Close frees the memory that is not in use.
func (p *Pool) Close() error {
	p.mu.Lock()
	free := p.free
	p.free, p.closed = nil, true
	p.mu.Unlock()
	var errs []error
	for _, m := range free {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}
