package exchange

import (
	"bufio"
	"context"
	"errors"
	"slices"
	"strings"
)

// Request asks the peer for a service, with its parameters and the local queue pairs, and returns
// the queue pairs of the peer.
//
// Old servers refuse messages with fields that they do not know. If the server refuses features,
// Request connects to it again and leaves them out, so the queue pairs that it returns have none,
// either.
func (c *Conn) Request(ctx context.Context, service string, params any, qps []QP) ([]QP, error) {
	answer, err := c.request(ctx, service, params, qps)
	if c.addr == "" || !haveFeatures(qps) || !refusesFeatures(err) {
		return answer, err
	}
	nc, err := dialTCP(ctx, c.addr)
	if err != nil {
		return nil, err
	}
	c.nc.Close()
	c.nc, c.r = nc, bufio.NewReader(nc)
	return c.request(ctx, service, params, withoutFeatures(qps))
}

func (c *Conn) request(ctx context.Context, service string, params any, qps []QP) ([]QP, error) {
	m := &Message{Kind: KindRequest, Service: service, Params: Encode(params), QPs: qps}
	if err := c.Send(ctx, m); err != nil {
		return nil, err
	}
	m, err := c.Receive(ctx, KindAccept)
	if err != nil {
		return nil, err
	}
	return m.QPs, nil
}

// refusesFeatures reports whether err is the answer of a server that does not know the field
// "features" of an endpoint.
func refusesFeatures(err error) bool {
	return errors.Is(err, ErrRemote) && strings.Contains(err.Error(), `unknown field "features"`)
}

// haveFeatures reports whether one of the queue pairs has features.
func haveFeatures(qps []QP) bool {
	return slices.ContainsFunc(qps, func(q QP) bool { return q.Endpoint.Features != 0 })
}

// withoutFeatures returns a copy of the queue pairs without features.
func withoutFeatures(qps []QP) []QP {
	qps = slices.Clone(qps)
	for i := range qps {
		qps[i].Endpoint.Features = 0
	}
	return qps
}
