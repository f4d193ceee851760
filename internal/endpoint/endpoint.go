package endpoint

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/roce"
)

// AllRemote grants peers every one-sided operation.
const AllRemote = roce.LocalWrite | roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic

// Config describes what New creates. The zero Config is one RC queue pair with default depths, one
// completion queue and no memory.
type Config struct {
	// QP is the template of every queue pair. New fills in SendCQ, RecvCQ and SRQ.
	QP roce.QPConfig
	// QPs is the number of queue pairs that New creates; 0 means 1, negative none.
	QPs int
	// MaxQPs is the number of queue pairs that the completion queues must serve if AddQP creates
	// more.
	MaxQPs int

	// SendCQ and RecvCQ are the capacities of the completion queues. With SendCQ 0 the capacity
	// fits all work requests that may be outstanding. With RecvCQ 0 one queue serves both
	// directions.
	SendCQ, RecvCQ int

	// SRQ, if set, describes a shared receive queue that all queue pairs use.
	SRQ *roce.SRQConfig

	// Memory is the size of MR in bytes; 0 means no region.
	Memory int
	// Access are the rights of MR; 0 means AllRemote.
	Access roce.Access
	// MROptions are passed to AllocMR for MR.
	MROptions []roce.MROption
}

// Endpoint is a set of verbs objects on one device. It owns everything except the device. Its
// methods must be called by one goroutine at a time; the objects themselves are safe for concurrent
// use.
type Endpoint struct {
	Dev    *roce.Device
	PD     *roce.PD
	CQ     *roce.CQ   // completions of send queues, and of receive queues unless RecvCQ differs
	RecvCQ *roce.CQ   // completions of receive queues; equals CQ if there is only one queue
	SRQ    *roce.SRQ  // nil without Config.SRQ
	MR     *roce.MR   // nil without Config.Memory
	QP     *roce.QP   // QPs[0], nil if there is none
	QPs    []*roce.QP // all queue pairs

	qp  roce.QPConfig
	mrs []*roce.MR
}

// New creates an endpoint on dev. Its queue pairs are in state INIT. After an error nothing is
// left.
func New(dev *roce.Device, c Config) (*Endpoint, error) {
	e := &Endpoint{Dev: dev, qp: c.QP}
	if err := e.create(&c); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Endpoint) create(c *Config) (err error) {
	c.setDefaults()
	if e.PD, err = e.Dev.AllocPD(); err != nil {
		return err
	}
	if e.CQ, err = e.Dev.CreateCQ(c.SendCQ); err != nil {
		return err
	}
	e.RecvCQ = e.CQ
	if c.RecvCQ > 0 {
		recv, err := e.Dev.CreateCQ(c.RecvCQ)
		if err != nil {
			return err
		}
		e.RecvCQ = recv
	}
	if c.Memory > 0 {
		if e.MR, err = e.AddMR(c.Memory, c.Access, c.MROptions...); err != nil {
			return err
		}
	}
	if c.SRQ != nil {
		if e.SRQ, err = e.Dev.CreateSRQ(e.PD, *c.SRQ); err != nil {
			return err
		}
		e.qp.SRQ = e.SRQ
	}
	e.qp.SendCQ, e.qp.RecvCQ = e.CQ, e.RecvCQ
	for range c.QPs {
		if _, err := e.AddQP(); err != nil {
			return err
		}
	}
	return nil
}

// defaultDepth is the depth that roce gives a queue whose configuration says 0.
const defaultDepth = 128

func (c *Config) setDefaults() {
	if c.QPs == 0 {
		c.QPs = 1
	}
	c.QPs = max(c.QPs, 0)
	if c.Access == 0 {
		c.Access = AllRemote
	}
	if c.SendCQ > 0 {
		return
	}
	depth := func(n int) int {
		if n == 0 {
			return defaultDepth
		}
		return n
	}
	c.SendCQ = depth(c.QP.SendDepth)
	if c.RecvCQ == 0 {
		c.SendCQ += depth(c.QP.RecvDepth)
	}
	c.SendCQ *= max(c.QPs, c.MaxQPs, 1)
}

// AddQP creates another queue pair from the template and appends it to QPs.
func (e *Endpoint) AddQP() (*roce.QP, error) { return e.AddQPOfType(e.qp.Type) }

// AddQPOfType creates another queue pair from the template, but of type t, and appends it to QPs.
func (e *Endpoint) AddQPOfType(t roce.QPType) (*roce.QP, error) {
	c := e.qp
	c.Type = t
	q, err := e.Dev.CreateQP(e.PD, c)
	if err != nil {
		return nil, err
	}
	e.QPs = append(e.QPs, q)
	e.QP = e.QPs[0]
	return q, nil
}

// AddMR allocates another memory region of size bytes. It lives as long as the endpoint.
func (e *Endpoint) AddMR(
	size int, access roce.Access, opts ...roce.MROption,
) (*roce.MR, error) {
	m, err := e.PD.AllocMR(size, access, opts...)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of registered memory: %w", size, err)
	}
	e.mrs = append(e.mrs, m)
	return m, nil
}

// Close destroys the endpoint's objects: queue pairs first, then the shared receive queue, regions,
// completion queues and the protection domain. The device stays open. Closing twice is harmless.
func (e *Endpoint) Close() error {
	var errs []error
	for _, q := range e.QPs {
		errs = append(errs, q.Close())
	}
	if e.SRQ != nil {
		errs = append(errs, e.SRQ.Close())
	}
	for _, m := range slices.Backward(e.mrs) {
		errs = append(errs, m.Close())
	}
	if e.RecvCQ != nil && e.RecvCQ != e.CQ {
		errs = append(errs, e.RecvCQ.Close())
	}
	if e.CQ != nil {
		errs = append(errs, e.CQ.Close())
	}
	if e.PD != nil {
		errs = append(errs, e.PD.Close())
	}
	return errors.Join(errs...)
}
