package flowplan

import (
	"time"

	"github.com/gorxe/gorxe/transport/flow"
)

// Observed is what Run observed of a flow, beside what was computed.
type Observed struct {
	Flow     string        `json:"flow"`
	Priority int           `json:"priority"`
	Sent     uint64        `json:"sent"` // messages that arrived
	Mean     time.Duration `json:"mean_ns"`
	Max      time.Duration `json:"max_ns"`
	Bound    time.Duration `json:"bound_ns"`    // -1: none
	Deadline time.Duration `json:"deadline_ns"` // 0: none
	Late     uint64        `json:"late"`
	Dropped  uint64        `json:"dropped"`
	Missed   uint64        `json:"missed"` // messages that were never sent
	Within   bool          `json:"within"` // Max is at most Bound
	// Chain is the bound of the time since the chain has begun that the flow belongs to, and
	// MaxChain the longest one. Both are 0 if the flow is not activated by others.
	Chain    time.Duration `json:"chain_bound_ns,omitempty"` // -1: none
	MaxChain time.Duration `json:"chain_max_ns,omitempty"`
}

func (r *runner) observed(bounds []flow.Response) []Observed {
	list := make([]Observed, len(r.tasks))
	for i, t := range r.tasks {
		f, st := &r.plan.Flows[i], t.Stats()
		o := Observed{Flow: f.Name, Priority: f.Priority, Sent: st.Sent,
			Max: time.Duration(st.MaxResponse), Bound: bounds[i].Bound,
			Deadline: f.EffectiveDeadline(),
			Late:     st.Late, Dropped: st.Dropped, Missed: st.Missed + st.Refused + st.Failed}
		if st.Finished > 0 {
			o.Mean = time.Duration(st.SumResponse / int64(st.Finished))
		}
		o.Within = o.Max <= o.Bound
		if len(f.After) > 0 {
			if o.Chain = f.Chain(o.Bound); o.Chain == flow.Unbounded {
				o.Chain = -1
			}
			o.MaxChain = r.chains[i]
			o.Within = o.Within && (o.Chain < 0 || o.MaxChain <= o.Chain)
		}
		if o.Bound == flow.Unbounded {
			o.Bound = -1
		}
		list[i] = o
	}
	return list
}
