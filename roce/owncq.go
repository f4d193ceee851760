package roce

// createOwnCQ creates the CQ of a QP whose configuration names none, and stores it in c. It returns
// nil if none is needed. The caller holds ctl.
func (d *Device) createOwnCQ(c *QPConfig) (*CQ, error) {
	if c.SendCQ != nil {
		if c.RecvCQ == nil {
			c.RecvCQ = c.SendCQ
		}
		return nil, nil
	}
	depth := c.SendDepth
	if c.RecvCQ == nil {
		if c.SRQ != nil {
			depth += c.SRQ.srq.Depth()
		} else {
			depth += c.RecvDepth
		}
	}
	own, err := d.createCQ(depth)
	if err != nil {
		return nil, err
	}
	own.owned, c.SendCQ = true, own
	if c.RecvCQ == nil {
		c.RecvCQ = own
	}
	return own, nil
}

// unused closes a CQ that CreateQP has created, if no QP uses it. The caller holds Device.ctl.
func (c *CQ) unused() {
	if c != nil && c.owned && c.refs == 0 && !c.closed.Load() {
		_ = c.shut() // fails only while the device closes, which closes the CQ
	}
}

// foreign reports whether the CQ belongs to another device. A nil CQ does not.
func (c *CQ) foreign(d *Device) bool { return c != nil && c.dev != d }

// over reports whether the CQ is closed. A nil CQ is not.
func (c *CQ) over() bool { return c != nil && c.closed.Load() }

// SendCQ returns the CQ for the completions of send work requests. Without QPConfig.SendCQ, it is
// a CQ that CreateQP has created for this QP: of SendDepth and, unless QPConfig.RecvCQ is set,
// RecvDepth or the depth of the SRQ. It is closed with the QP, but its completions can still be
// polled. After QP.Close, SendCQ returns nil; so call it once, after CreateQP.
func (q *QP) SendCQ() *CQ {
	defer q.lockObjects()()
	return q.send
}

// RecvCQ returns the CQ for the completions of receives: QPConfig.RecvCQ, or that of SendCQ. After
// QP.Close it returns nil.
func (q *QP) RecvCQ() *CQ {
	defer q.lockObjects()()
	return q.recv
}

// PD returns the QP's protection domain.
func (q *QP) PD() *PD { return q.pd }

func (q *QP) lockObjects() (unlock func()) {
	q.device().ctl.Lock()
	return q.device().ctl.Unlock
}
