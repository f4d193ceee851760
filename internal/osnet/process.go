package osnet

import (
	"fmt"
	"os"
	"strings"
)

// ProcessStatus returns the words of a line of /proc/PID/status after its name, at least one. For
// example, the line "Uid" has the four user IDs of the process. pid may also be the ID of a thread.
func ProcessStatus(pid int, name string) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) > 1 && words[0] == name+":" {
			return words[1:], nil
		}
	}
	return nil, fmt.Errorf("/proc/%d/status has no line %s", pid, name)
}
