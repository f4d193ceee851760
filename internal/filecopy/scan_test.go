package filecopy_test

import (
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// A scan counts what is then sent.
func TestScan(t *testing.T) {
	j := newJob(t)
	sample(t, j.from)
	j.rules = []string{"-/many/d3/", "-f4096"}
	o := j.ok()
	rules := new(pattern.List)
	for _, r := range j.rules {
		must(t, rules.Add(true, r[1:]))
	}
	p, err := source.Open(j.from + "/")
	must(t, err)
	defer p.Close()
	var s source.Scan
	if _, _, known := s.Total(); known {
		t.Error("the total is known before the scan")
	}
	s.Run(t.Context(), []*source.Path{p}, rules)
	if entries, bytes, known := s.Total(); entries != o.Entries || bytes != o.Bytes || !known {
		t.Errorf("Total() = %d, %d, %v, want %d, %d", entries, bytes, known, o.Entries, o.Bytes)
	}
}
