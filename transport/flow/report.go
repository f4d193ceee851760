package flow

import "github.com/gorxe/gorxe/transport/flow/core"

// ReportKind is the kind of a Report.
type ReportKind uint8

// The kinds of reports.
const (
	Late       ReportKind = iota // a task has exceeded its deadline
	Retried                      // it starts over
	Dropped                      // it was ended because it was late
	Overrun                      // a timer fired although the task had not finished
	Refused                      // a check did not let a message pass
	Failed                       // a message was lost because the connection broke
	numReports = iota
)

// String returns the name of the kind in lower case.
func (k ReportKind) String() string {
	if int(k) < len(reportNames) {
		return reportNames[k]
	}
	return "invalid"
}

var reportNames = [numReports]string{"late", "retried", "dropped", "overrun", "refused", "failed"}

// Report says which task is late or could not do its work.
type Report struct {
	Task string
	Kind ReportKind
	Time int64 // in nanoseconds of the scheduler's clock
	N    int   // Overrun: how often the timer fired
	Err  error // Refused, Failed: why
}

// Reports returns the channel of reports. It is closed when the scheduler is closed. It holds 256
// reports; while it is full, further reports are lost and counted by ReportsLost. Nothing waits for
// its reader.
func (s *Scheduler) Reports() <-chan Report { return s.reports }

// ReportsLost returns the number of reports that were lost because Reports was not read.
func (s *Scheduler) ReportsLost() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lost
}

// report reports what happened. The caller holds mu.
func (s *Scheduler) report(r Report) {
	if s.closed {
		return
	}
	select {
	case s.reports <- r:
	default:
		s.lost++
	}
}

// reported are the events of the machine that are reported.
var reported = map[core.Kind]ReportKind{core.Late: Late, core.Retried: Retried,
	core.Dropped: Dropped, core.Overrun: Overrun}

// event handles an event of the machine. The caller holds mu.
func (s *Scheduler) event(e core.Event) {
	t := s.tasks[e.Task]
	if s.cfg.Trace != nil {
		s.cfg.Trace(t, e)
	}
	if e.Kind == core.Dropped && t.sending != nil {
		t.abandon()
		if t.c.NotDone != nil {
			s.pending = append(s.pending, t.c.NotDone.id)
		}
	}
	if k, ok := reported[e.Kind]; ok {
		s.report(Report{Task: t.name, Kind: k, Time: e.Time, N: e.N})
	}
}
