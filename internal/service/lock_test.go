package service

import (
	"path/filepath"
	"testing"
	"time"
)

// A second Lock waits for the end of the first.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	unlock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	locked := make(chan func(bool))
	go func() {
		second, err := Lock(path)
		if err != nil {
			t.Error(err)
			second = func(bool) {}
		}
		locked <- second
	}()
	select {
	case <-locked:
		t.Fatal("Lock() returned although another caller has the lock")
	case <-time.After(20 * time.Millisecond):
	}
	unlock(true) // the second one locks a new file
	select {
	case second := <-locked:
		second(false)
	case <-time.After(20 * time.Second):
		t.Fatal("Lock() still waits after the lock was released")
	}
	if _, err := Lock(filepath.Join(t.TempDir(), "no", "x.sock")); err == nil {
		t.Error("Lock() = nil in a folder that does not exist, want an error")
	}
}

func TestAnswers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	if Answers(path) {
		t.Error("Answers() = true without a service")
	}
	s, err := New(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !Answers(path) {
		t.Error("Answers() = false for a service")
	}
	if s.HasMembers() {
		t.Error("HasMembers() = true for a new service")
	}
}
