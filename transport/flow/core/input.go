package core

import "fmt"

// input is an Input with its count.
type input struct {
	Input
	arrived int
}

// satisfied reports whether the threshold is reached.
func (i *input) satisfied() bool { return i.arrived >= i.Threshold }

// satisfied reports whether the inputs activate the task: one Final input, or all inputs that are
// neither Final nor Optional, of which there must be one.
func (t *task) satisfied() bool {
	needed, have := 0, 0
	for i := range t.inputs {
		in := &t.inputs[i]
		switch ok := in.satisfied(); {
		case in.Optional:
		case in.Final && ok:
			return true
		case in.Final:
		default:
			needed++
			if ok {
				have++
			}
		}
	}
	return needed > 0 && have == needed
}

// consume records which inputs are satisfied and takes their arrivals. A Synchron input that is not
// satisfied keeps what it has.
func (t *task) consume() {
	t.fired = 0
	for i := range t.inputs {
		in := &t.inputs[i]
		ok := in.satisfied()
		if ok {
			t.fired |= 1 << i
		}
		switch {
		case !in.Synchron:
			in.arrived = 0
		case ok:
			in.arrived -= in.Threshold
		}
	}
}

// addInputs checks the inputs of a task and connects them to their sources.
func (m *Machine) addInputs(id TaskID, c *TaskConfig) error {
	t := &m.tasks[id]
	active := false
	for i, in := range c.Inputs {
		switch {
		case in.Source < 0 || int(in.Source) >= len(m.sources):
			return fmt.Errorf("%w: input %d of task %q: no such source", ErrConfig, i, c.Name)
		case in.Threshold < 0 || in.Threshold > MaxThreshold:
			return fmt.Errorf("%w: input %d of task %q has the threshold %d: choose 1 to %d, or "+
				"make it optional", ErrConfig, i, c.Name, in.Threshold, MaxThreshold)
		case in.Optional && in.Final:
			return fmt.Errorf("%w: input %d of task %q is optional and final: choose one",
				ErrConfig, i, c.Name)
		}
		in.Threshold = max(in.Threshold, 1)
		in.Final = (in.Final || c.Any) && !in.Optional
		active = active || !in.Optional
		t.inputs = append(t.inputs, input{Input: in})
	}
	if !active {
		return fmt.Errorf("%w: nothing activates task %q: give it an input that is not optional",
			ErrConfig, c.Name)
	}
	for i, in := range t.inputs {
		s := &m.sources[in.Source]
		s.inputs = append(s.inputs, inputRef{id, int32(i)})
	}
	return nil
}
