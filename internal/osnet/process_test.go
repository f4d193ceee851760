package osnet

import (
	"os"
	"slices"
	"strconv"
	"testing"
)

func TestProcessStatus(t *testing.T) {
	uid := strconv.Itoa(os.Geteuid())
	for name, want := range map[string][]string{
		"Tgid": {strconv.Itoa(os.Getpid())},
		"Uid":  {strconv.Itoa(os.Getuid()), uid, uid, uid},
	} {
		if got, err := ProcessStatus(os.Getpid(), name); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v, want %q", name, got, err, want)
		}
	}
	if got, err := ProcessStatus(os.Getpid(), "Ui"); err == nil {
		t.Errorf("a line that does not exist: %q", got)
	}
	if _, err := ProcessStatus(1<<30, "Uid"); !os.IsNotExist(err) {
		t.Errorf("a process that does not exist: %v", err)
	}
}
