package up

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// The service manager gets the messages, also through a socket in the abstract namespace.
func TestNotify(t *testing.T) {
	for _, name := range []string{
		filepath.Join(t.TempDir(), "notify"), "@gorxe-" + t.TempDir(),
	} {
		l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		t.Setenv(notifyVariable, name)
		m := connectManager()
		defer m.close()
		for _, want := range []string{notifyReady, notifyStopping} {
			m.notify(want)
			if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			buf := make([]byte, 100)
			n, err := l.Read(buf)
			if err != nil || string(buf[:n]) != want {
				t.Errorf("the manager received %q, %v; want %q", buf[:n], err, want)
			}
		}
	}
	for _, name := range []string{"", "/does/not/exist"} {
		t.Setenv(notifyVariable, name)
		m := connectManager()
		m.notify(notifyReady)
		m.close()
	}
}
