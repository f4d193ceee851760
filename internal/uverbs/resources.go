package uverbs

import "github.com/gorxe/gorxe/roce"

// Resources counts the objects of all contexts.
type Resources struct{ PDs, CQs, QPs, MRs, SRQs, Contexts uint64 }

// Resources returns the numbers of objects. It waits for calls that change objects.
func (d *Device) Resources() (r Resources) {
	d.mu.Lock()
	open := make([]*Context, 0, len(d.contexts))
	for c := range d.contexts {
		open = append(open, c)
	}
	d.mu.Unlock()
	r.Contexts = uint64(len(open))
	for _, c := range open {
		c.mu.Lock()
		for _, o := range c.objects {
			switch o.(type) {
			case *roce.PD:
				r.PDs++
			case *completionQueue:
				r.CQs++
			case *queuePair:
				r.QPs++
			case *memoryRegion:
				r.MRs++
			case *sharedQueue:
				r.SRQs++
			}
		}
		c.mu.Unlock()
	}
	return r
}
