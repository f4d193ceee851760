package uverbs

import "testing"

func TestResources(t *testing.T) {
	a, _ := connected(t, 2, 4096)
	if got, want := a.dev.Resources(), (Resources{PDs: 1, CQs: 1, QPs: 1, MRs: 1,
		Contexts: 1}); got != want {
		t.Errorf("Resources() = %+v, want %+v", got, want)
	}
	a.ctx.Close()
	if got := a.dev.Resources(); got != (Resources{}) {
		t.Errorf("Resources() = %+v after Close, want none", got)
	}
}
