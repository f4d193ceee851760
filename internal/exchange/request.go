package exchange

import (
	"bufio"
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/gorxe/gorxe/roce"
)

// Request asks the peer for a service, with its parameters and the local queue pairs, and returns
// the queue pairs of the peer.
//
// Old servers refuse messages with fields that they do not know. If the server refuses a field of
// the endpoints, Request connects to it again and leaves the field out. The queue pairs that it
// returns do not have the field, either.
func (c *Conn) Request(ctx context.Context, service string, params any, qps []QP) ([]QP, error) {
	for {
		answer, err := c.request(ctx, service, params, qps)
		field := slices.IndexFunc(newFields, func(f newField) bool {
			return f.refused(err) && f.used(qps)
		})
		if c.addr == "" || field < 0 {
			return answer, err
		}
		nc, err := dialTCP(ctx, c.dev, c.addr)
		if err != nil {
			return nil, err
		}
		c.nc.Close()
		c.nc, c.r = nc, bufio.NewReader(nc)
		qps = newFields[field].without(qps)
	}
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

// newField is a field of an endpoint that old versions of gorxe do not know. Its JSON omits the
// zero value.
type newField struct {
	name  string // in JSON
	isSet func(*roce.Endpoint) bool
	clear func(*roce.Endpoint)
}

var newFields = []newField{
	{"features", func(e *roce.Endpoint) bool { return e.Features != 0 },
		func(e *roce.Endpoint) { e.Features = 0 }},
	{"class", func(e *roce.Endpoint) bool { return e.Class != 0 },
		func(e *roce.Endpoint) { e.Class = 0 }},
}

// refused reports whether err is the answer of a server that does not know the field.
func (f *newField) refused(err error) bool {
	return errors.Is(err, ErrRemote) && strings.Contains(err.Error(), `unknown field "`+f.name+`"`)
}

// used reports whether one of the queue pairs has the field.
func (f *newField) used(qps []QP) bool {
	return slices.ContainsFunc(qps, func(q QP) bool { return f.isSet(&q.Endpoint) })
}

// without returns a copy of the queue pairs without the field.
func (f *newField) without(qps []QP) []QP {
	qps = slices.Clone(qps)
	for i := range qps {
		f.clear(&qps[i].Endpoint)
	}
	return qps
}

// usedFields returns the new fields that the queue pairs of a request have, as a bit set.
func usedFields(qps []QP) (set uint) {
	for i := range newFields {
		if newFields[i].used(qps) {
			set |= 1 << i
		}
	}
	return set
}

// withOnly returns the queue pairs without the new fields that are not in the set.
func withOnly(set uint, qps []QP) []QP {
	for i := range newFields {
		if set&(1<<i) == 0 && newFields[i].used(qps) {
			qps = newFields[i].without(qps)
		}
	}
	return qps
}
