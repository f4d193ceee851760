//go:build amd64

package supervisor

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func init() { programs["chdir"] = changeDirectory }

// directories enters and leaves directories of the tree, while processes end that the supervisor
// collects.
const directories = `
ports=/sys/class/infiniband/rxe0/ports
i=0
while test $i -lt 100; do
	i=$((i+1))
	cd $ports
	test "$(cat 1/state)" = "4: ACTIVE" || echo "state: $(cat 1/state)"
	cd .. && test -f node_type || echo "no node_type in $PWD"
	(true &)
	cd /
	test ! -e node_type || echo "still inside"
done
cd $ports/1/state 2>/dev/null && echo "a file"
cd /sys/class/infiniband/rxe1 2>/dev/null && echo "nothing"
ls -l /proc/self/fd | grep infiniband
exit 0`

// changeDirectory runs directories in a shell. The process itself has several threads: its call
// fails.
func changeDirectory() int {
	if err := os.Chdir("/sys/class/infiniband"); !errors.Is(err, unix.EACCES) {
		fmt.Fprintf(os.Stderr, "Chdir() with several threads = %v, want EACCES\n", err)
		return statusBad
	}
	b, err := exec.Command("/bin/sh", "-c", directories).CombinedOutput()
	if err != nil || strings.TrimSpace(string(b)) != "" {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, b)
		return statusBad
	}
	return 0
}

// TestChdir changes the working directory of programs, also as an ordinary user.
func TestChdir(t *testing.T) {
	for _, uid := range []uint32{0, nobody} {
		o := runProgram(t, "chdir", uid)
		if o.status != 0 {
			t.Errorf("user %d: status %d\n%s", uid, o.status, o.stderr)
		}
	}
}
