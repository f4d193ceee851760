package core

import (
	"fmt"
	"strings"
)

// findCycle returns an error that names the tasks of a cycle, if there is one: tasks each of which
// pushes a source that activates the next.
func (m *Machine) findCycle() error {
	const (
		unseen = iota
		open   // on the path
		closed // in no cycle
	)
	state := make([]uint8, len(m.tasks))
	var path []TaskID
	var visit func(id TaskID) error
	visit = func(id TaskID) error {
		switch state[id] {
		case closed:
			return nil
		case open:
			return m.cycleError(path, id)
		}
		state[id] = open
		path = append(path, id)
		for _, out := range m.tasks[id].outputs {
			for _, ref := range m.sources[out].inputs {
				if m.tasks[ref.task].inputs[ref.n].Optional {
					continue // activates nothing
				}
				if err := visit(ref.task); err != nil {
					return err
				}
			}
		}
		path = path[:len(path)-1]
		state[id] = closed
		return nil
	}
	for id := range m.tasks {
		if err := visit(TaskID(id)); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) cycleError(path []TaskID, id TaskID) error {
	var names []string
	for i := len(path) - 1; i >= 0; i-- {
		names = append([]string{fmt.Sprintf("%q", m.Name(path[i]))}, names...)
		if path[i] == id {
			break
		}
	}
	return fmt.Errorf("%w: the tasks %s activate each other in a cycle: remove an output or make "+
		"an input optional", ErrConfig, strings.Join(names, ", "))
}
