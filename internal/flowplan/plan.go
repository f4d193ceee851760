package flowplan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
	"github.com/gorxe/gorxe/transport/flow/core"
)

// ErrPlan means that a description cannot be used.
var ErrPlan = errors.New("invalid description")

const (
	// MaxText bounds a description in bytes, maxFlows its flows, and maxSplit the parts of a
	// message.
	MaxText  = 1 << 20
	maxFlows = 256
	maxSplit = 1 << 12
	// maxRetries bounds the retries of a late message.
	maxRetries = 1000
	// minMTU and maxMTU are the limits of a path MTU, a power of 2.
	minMTU, maxMTU, defaultMTU = 256, 4096, 1024
	// ackLen is the length of an acknowledgment on an Ethernet link, in bytes, rounded up.
	ackLen = 100
	// ackDelay is how long a receiver delays an acknowledgment, rounded up.
	ackDelay = 5 * time.Microsecond
)

// Plan is a description of flows.
type Plan struct {
	// Link has Points if the traffic classes of the engine order the messages.
	Link flow.Link
	// Delay is the propagation of the link in one direction.
	Delay time.Duration
	// Classes is how the engine sends each class, with Link.Points.
	Classes [roce.NumClasses]roce.ClassConfig
	Tasks   []Task
	Flows   []Flow
}

// Flow is one flow of a Plan. With After, Period and Jitter are those of the chain.
type Flow struct {
	flow.Flow
	Class   int
	Phase   time.Duration
	After   []string // tasks and flows whose ends activate it; none: it has a period
	OnLate  flow.Action
	Retries int
	MaxAge  time.Duration

	// Of a flow in a chain: the earliest phase in the chain, and the earliest time at which the
	// first message is activated.
	Begin, Earliest time.Duration
}

// EffectiveDeadline returns the deadline of the flow: its period if it has none, 0 for a token
// bucket.
func (f *Flow) EffectiveDeadline() time.Duration {
	if f.Deadline == 0 {
		return f.Period
	}
	return f.Deadline
}

// Model returns the flows for flow.Bound.
func (p *Plan) Model() []flow.Flow {
	list := make([]flow.Flow, len(p.Flows))
	for i := range p.Flows {
		list[i] = p.Flows[i].Flow
	}
	return list
}

// description is the text form of a Plan.
type description struct {
	Link    linkText           `yaml:"link"`
	Classes *map[int]classText `yaml:"classes"`
	Tasks   []taskText         `yaml:"tasks"`
	Flows   []flowText         `yaml:"flows"`
}

type classText struct {
	Preempt preempt `yaml:"preempt"`
}

type taskText struct {
	Name   string `yaml:"name"`
	Period *span  `yaml:"period"`
	Phase  span   `yaml:"phase"`
	After  names  `yaml:"after"`
	Time   span   `yaml:"time"`
}

type linkText struct {
	Rate     rate  `yaml:"rate"`
	MTU      int   `yaml:"mtu"`
	Overhead int   `yaml:"overhead"`
	Delay    span  `yaml:"delay"`
	Gap      *span `yaml:"gap"`
	Backlog  size  `yaml:"backlog"`
	InFlight int   `yaml:"in_flight"`
}

type flowText struct {
	Name     string `yaml:"name"`
	Priority *int   `yaml:"priority"`
	Class    *int   `yaml:"class"`
	Size     size   `yaml:"size"`
	Period   span   `yaml:"period"`
	Phase    span   `yaml:"phase"`
	After    names  `yaml:"after"`
	Jitter   span   `yaml:"jitter"`
	Burst    size   `yaml:"burst"`
	Rate     rate   `yaml:"rate"`
	Split    []size `yaml:"split"`
	Part     size   `yaml:"part"`
	Deadline span   `yaml:"deadline"`
	OnLate   string `yaml:"on_late"`
	Retries  int    `yaml:"retries"`
	MaxAge   span   `yaml:"max_age"`
}

// Parse reads a description in YAML or JSON. It refuses unknown keys and values out of range with
// ErrPlan.
func Parse(text []byte) (*Plan, error) {
	p, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", ErrPlan,
			strings.TrimPrefix(err.Error(), flow.ErrConfig.Error()+": "))
	}
	return p, nil
}

func parse(text []byte) (*Plan, error) {
	if len(text) > MaxText {
		return nil, fmt.Errorf("more than %d bytes", MaxText)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var d description
	if err := dec.Decode(&d); err != nil {
		if err == io.EOF {
			return nil, errors.New("the file is empty")
		}
		return nil, readable(err)
	}
	if err := dec.Decode(new(yaml.Node)); err != io.EOF {
		return nil, errors.New("there is more than one document: remove what follows the line ---")
	}
	switch {
	case d.Link.Delay < 0:
		return nil, fmt.Errorf("link has the delay %v: choose 0 or more",
			time.Duration(d.Link.Delay))
	case d.Link.Rate == 0:
		return nil, errors.New("link has no rate: write for example rate: 978Mb/s")
	case len(d.Flows) == 0:
		return nil, errors.New("there are no flows")
	case len(d.Flows) > maxFlows:
		return nil, fmt.Errorf("%d flows, at most %d are possible", len(d.Flows), maxFlows)
	case len(d.Tasks) > maxFlows:
		return nil, fmt.Errorf("%d tasks, at most %d are possible", len(d.Tasks), maxFlows)
	}
	if m := d.Link.MTU; m != 0 && (m < minMTU || m > maxMTU || m&(m-1) != 0) {
		return nil, fmt.Errorf("mtu is %d: choose 256, 512, 1024, 2048 or 4096", m)
	}
	p := d.Link.plan()
	if err := p.setClasses(d.Classes); err != nil {
		return nil, err
	}
	if err := d.checkNames(); err != nil {
		return nil, err
	}
	for i := range d.Tasks {
		to, err := d.Tasks[i].task()
		if err != nil {
			return nil, fmt.Errorf("task %q: %w", d.Tasks[i].Name, err)
		}
		p.Tasks = append(p.Tasks, to)
	}
	for i := range d.Flows {
		f := &d.Flows[i]
		to, err := f.flow()
		if err == nil {
			err = p.setClass(&to, f)
		}
		if err != nil {
			return nil, fmt.Errorf("flow %q: %w", f.Name, err)
		}
		p.Flows = append(p.Flows, to)
	}
	bounds, err := p.chain()
	if err != nil {
		return nil, err
	}
	return p, p.checkDeadlines(bounds)
}

// checkNames checks that all tasks and flows have different names.
func (d *description) checkNames() error {
	seen := map[string]bool{}
	check := func(kind string, i int, name string) error {
		switch {
		case name == "":
			return fmt.Errorf("%s %d has no name", kind, i+1)
		case seen[name]:
			return fmt.Errorf("two tasks or flows have the name %q", name)
		}
		seen[name] = true
		return nil
	}
	for i := range d.Tasks {
		if err := check("task", i, d.Tasks[i].Name); err != nil {
			return err
		}
	}
	for i := range d.Flows {
		if err := check("flow", i, d.Flows[i].Name); err != nil {
			return err
		}
	}
	return nil
}

var (
	unknownField = regexp.MustCompile(`^(line \d+): field (.*) not found in type .*$`)
	wrongKind    = regexp.MustCompile(`^(line \d+): cannot unmarshal \S+ ?(.*?) into (.*)$`)
)

// readable removes the names of Go types from an error of package yaml.
func readable(err error) error {
	var t *yaml.TypeError
	if !errors.As(err, &t) {
		return err
	}
	var list []string
	for _, e := range t.Errors {
		e = unknownField.ReplaceAllString(e, `$1: unknown key "$2"`)
		if m := wrongKind.FindStringSubmatch(e); m != nil {
			e = m[1] + ": want " + kindOf(m[3])
			if m[2] != "" {
				e += ", not " + m[2]
			}
		}
		list = append(list, e)
	}
	return errors.New(strings.Join(list, "; "))
}

// kindOf describes the values of a Go type.
func kindOf(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case goType == "int":
		return "a whole number"
	case goType == "string":
		return "a text"
	}
	return "keys with values, such as rate: 1Gb/s"
}

// plan returns a plan without flows.
func (l *linkText) plan() *Plan {
	if l.MTU == 0 {
		l.MTU = defaultMTU
	}
	p := &Plan{Link: flow.Link{Rate: int64(l.Rate), MTU: l.MTU, Overhead: l.Overhead,
		Backlog: int(l.Backlog), InFlight: l.InFlight}, Delay: time.Duration(l.Delay)}
	if l.Gap != nil {
		p.Link.Gap = time.Duration(*l.Gap)
	} else {
		p.Link.Gap = 2*p.Delay + time.Duration(ackLen*8e9/p.Link.Rate) + ackDelay
	}
	return p
}

// flow returns the flow.
func (f *flowText) flow() (Flow, error) {
	to := Flow{Flow: flow.Flow{Name: f.Name, Size: int(f.Size),
		Period: time.Duration(f.Period), Jitter: time.Duration(f.Jitter), Burst: int(f.Burst),
		Rate: int64(f.Rate), Part: int(f.Part), Deadline: time.Duration(f.Deadline)},
		Phase: time.Duration(f.Phase), After: f.After, Retries: f.Retries,
		MaxAge: time.Duration(f.MaxAge)}
	switch {
	case len(f.Split) > maxSplit:
		return to, fmt.Errorf("%d parts, at most %d are possible", len(f.Split), maxSplit)
	case f.Phase < 0 || time.Duration(f.Phase) > core.MaxPeriod:
		return to, fmt.Errorf("the phase is %v: choose 0 to %v", to.Phase, core.MaxPeriod)
	case f.MaxAge < 0:
		return to, fmt.Errorf("max_age is %v: choose 0 (any) or more", to.MaxAge)
	case len(f.After) > 0 && (f.Period != 0 || f.Phase != 0 || f.Jitter != 0 || f.Burst != 0 ||
		f.Rate != 0):
		return to, errAfter
	case f.Retries < 0 || f.Retries > maxRetries:
		return to, fmt.Errorf("%d retries: choose 0 to %d", f.Retries, maxRetries)
	}
	for _, n := range f.Split {
		to.Split = append(to.Split, int(n))
	}
	var err error
	if to.OnLate, err = action(f.OnLate); to.OnLate == flow.Retry {
		to.Retries = max(to.Retries, 1)
	}
	return to, err
}

// checkDeadlines refuses deadlines that are shorter than the transmission.
func (p *Plan) checkDeadlines(bounds []flow.Response) error {
	for i, f := range p.Flows {
		if f.Deadline > 0 && f.Deadline < bounds[i].Alone {
			return fmt.Errorf("flow %q has the deadline %v, but a message takes %v without other "+
				"flows: make the deadline longer or the messages shorter", f.Name, f.Deadline,
				bounds[i].Alone)
		}
	}
	return nil
}

// action parses the name of an action.
func action(name string) (flow.Action, error) {
	if name == "" {
		return flow.Warn, nil
	}
	for a := flow.Warn; a <= flow.Drop; a++ {
		if a.String() == name {
			return a, nil
		}
	}
	return 0, fmt.Errorf("on_late is %q: choose warn, retry or drop", name)
}
