package ps

import (
	"os"
	"strings"

	"golang.org/x/term"
)

// Control sequences of terminals (ECMA-48, and xterm's alternate screen).
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// keyInterrupt is what Ctrl-C sends in raw mode.
const keyInterrupt = 3

// screen is a terminal in raw mode with the alternate screen.
type screen struct {
	out  *os.File
	fd   int // of the input
	old  *term.State
	keys chan byte // 0: the input has ended
}

func openScreen(out, in *os.File) (*screen, error) {
	fd := int(in.Fd())
	old, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	s := &screen{out: out, fd: fd, old: old, keys: make(chan byte)}
	_, _ = out.WriteString(enterScreen)
	go func() { // ends with the process: reads from a terminal cannot be interrupted
		var b [1]byte
		for {
			if n, err := in.Read(b[:]); n == 0 || err != nil {
				b[0] = 0
			}
			s.keys <- b[0]
			if b[0] == 0 {
				return
			}
		}
	}()
	return s, nil
}

func (s *screen) close() {
	_, _ = s.out.WriteString(leaveScreen)
	_ = term.Restore(s.fd, s.old)
}

// show replaces the picture. Lines and columns that do not fit are cut.
func (s *screen) show(text string) {
	width, height, err := term.GetSize(int(s.out.Fd()))
	if err != nil || width <= 0 || height <= 0 { // a terminal may not know its size
		width, height = 80, 24
	}
	_, _ = s.out.WriteString(frame(text, width, height))
}

// frame returns the control sequences that show text in a terminal of a size. All characters are
// one column wide.
func frame(text string, width, height int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	lines = lines[:min(len(lines), height)]
	for i, l := range lines {
		if r := []rune(l); len(r) > width {
			lines[i] = string(r[:width])
		}
	}
	return home + strings.Join(lines, clearLine+"\r\n") + clearLine + clearRest
}
