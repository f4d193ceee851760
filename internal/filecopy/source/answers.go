package source

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// answers handles messages of the sink until its summary.
func (s *Source) answers(ctx context.Context) (record.Summary, error) {
	for {
		msg, err := s.conn.ReceiveMessage(ctx)
		if err != nil {
			return record.Summary{}, err
		}
		kind, rest, err := record.Split(msg)
		if err != nil {
			return record.Summary{}, err
		}
		switch kind {
		case record.MessageAnswers:
			for len(rest) > 0 {
				var a record.Answer
				if rest, err = record.NextAnswer(rest, &a); err != nil {
					return record.Summary{}, err
				}
				if err := s.answer(&a); err != nil {
					return record.Summary{}, err
				}
			}
		case record.MessageSummary:
			summary, err := record.ParseSummary(rest)
			if err == nil {
				err = s.complete()
			}
			return summary, err
		default:
			return record.Summary{}, fmt.Errorf("%w: message %d during the transfer",
				record.ErrFormat, kind)
		}
	}
}

// complete checks that the sink has answered everything.
func (s *Source) complete() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.walked || len(s.pending) > 0 {
		return fmt.Errorf("%w: the receiver ended, but %d entries are without an answer",
			record.ErrFormat, len(s.pending))
	}
	return nil
}

// answer handles one answer.
func (s *Source) answer(a *record.Answer) error {
	s.mu.Lock()
	it := s.pending[a.Number]
	if a.Verdict == record.Deleted {
		s.mu.Unlock()
		s.deleted(it, a.Text)
		return nil
	}
	if a.Number == 0 && a.Verdict == record.Failed { // the target directory has no entry
		s.mu.Unlock()
		s.report(s.topText(), fmt.Errorf("receiver: %w", errors.New(a.Text)))
		return nil
	}
	if it == nil || a.Verdict == record.Want && it.wanted {
		s.mu.Unlock()
		return fmt.Errorf("%w: an answer about entry %d", record.ErrFormat, a.Number)
	}
	done := a.Verdict != record.Want
	if done {
		delete(s.pending, a.Number)
	}
	if a.Verdict == record.Done {
		s.stored++
		if it.Kind == record.File {
			s.storedBytes += it.Size
		}
	}
	release := it.slot && (done || it.Kind == record.Dir)
	if release {
		it.slot = false
	}
	reported := it.failed
	it.failed = reported || a.Verdict == record.Failed
	it.wanted = it.wanted || a.Verdict == record.Want
	if a.Verdict == record.Want && it.Kind != record.Dir {
		it.have = a.Have
		s.queue(it)
	}
	s.mu.Unlock()
	if release {
		<-s.slots
	}
	switch {
	case !done:
		return nil
	case a.Verdict == record.Failed && !reported:
		it.stop.Store(true)
		s.report(it.text(), fmt.Errorf("receiver: %w", errors.New(a.Text)))
	case a.Verdict == record.Skipped:
		s.skipped(it, a.Reason)
	}
	s.entries.Add(1)
	return nil
}

// topText returns the path of a directory whose contents go to the target directory.
func (s *Source) topText() string {
	for _, p := range s.c.Paths {
		if p.Stream == nil && p.Name == "" {
			return p.Text
		}
	}
	return "target"
}

// queue gives an item to the readers. The caller holds mu.
func (s *Source) queue(it *item) {
	if it.Kind == record.File && it.Size <= s.maxSmall && len(it.have) == 0 && !it.Sparse {
		s.small = append(s.small, it)
		s.smalls.Signal()
	} else {
		s.large = append(s.large, it)
		s.larges.Signal()
	}
}

func (s *Source) skipped(it *item, why record.Reason) {
	if it.Kind == record.File {
		s.bytes.Add(it.Size)
	}
	if why == record.DryRun {
		s.events.Lock()
		defer s.events.Unlock()
		if s.c.Listed != nil {
			s.c.Listed(it.text())
		}
	}
}

// deleted reports that the sink has deleted a path below the directory it, nil for the target. The
// report has the path below the target.
func (s *Source) deleted(it *item, path string) {
	if it != nil {
		path = it.dir.Join(it.name) + "/" + path
	}
	s.events.Lock()
	defer s.events.Unlock()
	if s.c.Deleted != nil {
		s.c.Deleted(path)
	}
}
