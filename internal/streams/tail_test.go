package streams

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/safefile"
	"github.com/gorxe/gorxe/internal/syncbuf"
	"github.com/gorxe/gorxe/transport/statusbyte"
)

// Tail waits for a directory that does not exist yet, and says so once.
func TestTailMissingDirectory(t *testing.T) {
	store, err := statusbyte.OpenStore(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	var diag syncbuf.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- Tail(ctx, store.Dir(1), false, &out, &diag) }()
	for diag.String() == "" && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(3 * tailPause)
	if err := errors.Join(store.Put(1, []byte("data")), store.End(1), <-done,
		store.Close()); err != nil || out.String() != "data" {
		t.Errorf("Tail() = %v, wrote %q", err, out.String())
	}
	if text := diag.String(); strings.Count(text, "\n") != 1 ||
		!strings.Contains(text, store.Dir(1)+" does not exist yet") {
		t.Errorf("Tail() reported %q, want one line about the missing directory", text)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Tail(ctx, file, false, &out, &diag); err == nil ||
		!strings.Contains(err.Error(), "is not a directory") {
		t.Errorf("Tail() of a file = %v", err)
	}
}

// A user who can write to the directory cannot make Tail show another file or wait forever.
func TestTailPlantedFile(t *testing.T) {
	for name, plant := range map[string]func(secret, name string) error{
		"symbolic link": os.Symlink,
		"FIFO":          func(_, name string) error { return unix.Mkfifo(name, 0o600) },
		"directory":     func(_, name string) error { return os.Mkdir(name, 0o700) },
	} {
		base := t.TempDir()
		secret, dir := filepath.Join(base, "secret"), filepath.Join(base, "dir")
		planted := filepath.Join(dir, "0"+statusbyte.StoreSuffix)
		if err := errors.Join(os.WriteFile(secret, []byte("secret"), 0o600),
			os.Mkdir(dir, 0o700), plant(secret, planted),
			os.WriteFile(filepath.Join(dir, statusbyte.EndMark), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		done := make(chan error, 1)
		go func() { done <- Tail(ctx, dir, true, &out, &bytes.Buffer{}) }()
		select {
		case err := <-done:
			if !errors.Is(err, safefile.ErrUnsafe) || out.Len() > 0 {
				t.Errorf("%s: Tail() = %v, wrote %q, want ErrUnsafe", name, err, out.String())
			}
		case <-ctx.Done():
			t.Errorf("%s: Tail() blocks", name)
		}
		cancel()
	}
}
