package flow

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// ErrAdmit means that flows do not meet their deadlines. The error is an *AdmitError.
var ErrAdmit = errors.New("flow: the flows do not fit")

// AdmitError lists the flows that do not meet their deadlines.
type AdmitError struct{ Misfits []Misfit }

// Misfit is a flow that does not meet its deadline.
type Misfit struct {
	Flow     string
	Deadline time.Duration // 0: none, but it must have a bound
	Bound    time.Duration // Unbounded if the link is overloaded
	Excess   time.Duration // Bound - Deadline
	Alone    time.Duration // the response time without other flows
	Load     float64       // see Response
}

// Error implements error.
func (e *AdmitError) Error() string {
	var b strings.Builder
	b.WriteString(ErrAdmit.Error())
	for _, m := range e.Misfits {
		b.WriteString("\n\t" + m.String())
	}
	return b.String()
}

// Is reports whether target is ErrAdmit.
func (e *AdmitError) Is(target error) bool { return target == ErrAdmit }

// fullLoad is the load above which a link is too busy for bounds. Below it, a flow has no bound
// because another one of its or a higher priority has a jitter without a bound.
const fullLoad = 0.9

// String says what is wrong and what helps.
func (m *Misfit) String() string {
	switch {
	case m.Deadline > 0 && m.Alone > m.Deadline:
		return fmt.Sprintf("flow %q takes %v even without other flows, %v more than its deadline of "+
			"%v: make its messages shorter", m.Flow, m.Alone, m.Alone-m.Deadline, m.Deadline)
	case m.Bound == Unbounded:
		text := fmt.Sprintf("flow %q has no bound", m.Flow)
		if m.Deadline > 0 {
			text += fmt.Sprintf(", and its deadline is %v", m.Deadline)
		}
		text += fmt.Sprintf(": flows of its and higher priorities need %.1f %% of the link", 100*m.Load)
		if m.Load < fullLoad {
			text += ", but a flow that activates one of them has no bound"
		}
		return text
	}
	return fmt.Sprintf("flow %q takes up to %v, %v more than its deadline of %v: raise its priority, "+
		"or split messages of lower priorities", m.Flow, m.Bound, m.Excess, m.Deadline)
}

// Admit checks that every flow meets its deadline in the worst case (Bound). If not, it returns the
// bounds and an *AdmitError.
func Admit(l Link, flows []Flow) ([]Response, error) {
	bounds, err := Bound(l, flows)
	if err != nil {
		return nil, err
	}
	var misfits []Misfit
	for i := range flows {
		deadline, r := flows[i].deadline(), &bounds[i]
		if deadline == 0 && r.Bound < Unbounded {
			continue
		}
		if deadline == 0 || r.Bound > deadline {
			misfits = append(misfits, Misfit{Flow: r.Flow, Deadline: deadline, Bound: r.Bound,
				Excess: r.Bound - deadline, Alone: r.Alone, Load: r.Load})
		}
	}
	if len(misfits) > 0 {
		return bounds, &AdmitError{misfits}
	}
	return bounds, nil
}
