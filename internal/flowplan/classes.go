package flowplan

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

// setClasses makes the traffic classes of the engine order the messages, if a description has the
// key classes.
func (p *Plan) setClasses(text *map[int]classText) error {
	if text == nil {
		return nil
	}
	if p.Link.InFlight > 1 {
		return errors.New("link has in_flight, which is for the scheduler: remove it, or the classes")
	}
	p.Link.Points = true
	for i := range p.Classes {
		p.Classes[i].Order = roce.FIFO
	}
	for class, c := range *text {
		if err := checkClass(class); err != nil {
			return fmt.Errorf("classes: %w", err)
		}
		p.Classes[class].Preempt = int(c.Preempt)
	}
	// The time of the acknowledgment of a message, and before the flow's next one.
	p.Link.Delay = p.Link.Gap
	return nil
}

func checkClass(class int) error {
	if class < 0 || class > flow.MaxClass {
		return fmt.Errorf("there is no traffic class %d: choose 0 to %d", class, flow.MaxClass)
	}
	return nil
}

// setClass sets the priority and the class of a flow, and with classes its preemption points.
func (p *Plan) setClass(f *Flow, text *flowText) error {
	if text.Priority != nil {
		f.Priority = *text.Priority
	}
	f.Class = min(max(f.Priority, 0), flow.MaxClass)
	if text.Class != nil {
		f.Class = *text.Class
		if err := checkClass(f.Class); err != nil {
			return err
		}
	}
	if !p.Link.Points {
		return nil
	}
	switch {
	case text.Priority != nil && f.Priority != f.Class:
		return fmt.Errorf("the priority is %d and the class %d: with classes, the class is the "+
			"priority, 0 to %d", f.Priority, f.Class, flow.MaxClass)
	case len(text.Split) > 0 || text.Part != 0:
		return fmt.Errorf("the messages have parts: with classes, set preempt of class %d instead",
			f.Class)
	}
	f.Priority = f.Class
	switch n := p.Classes[f.Class].Preempt; n {
	case roce.PreemptAtEnd:
		f.Part = 0
	default:
		f.Part = max(n, p.Link.MTU)
	}
	return nil
}

// deviceOptions returns the options of the sending device.
func (p *Plan) deviceOptions() []roce.Option {
	if !p.Link.Points {
		return nil
	}
	return []roce.Option{roce.WithClasses(p.Classes)}
}

// DeviceOptions returns the options of a device for Send.
func (p *Plan) DeviceOptions() []roce.Option {
	if !p.Link.Points {
		return nil
	}
	return append(p.deviceOptions(), roce.WithLinkRate(p.Link.Rate))
}

// idleClass returns a class that is not that of all flows. A device does not limit the backlog if
// all of its queue pairs have the same class.
func (p *Plan) idleClass() int {
	for i := range p.Flows {
		if p.Flows[i].Class != p.Flows[0].Class {
			return p.Flows[0].Class
		}
	}
	return (p.Flows[0].Class + 1) % roce.NumClasses
}
