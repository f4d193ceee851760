package service

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

// A second Lock waits for the end of the first.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	locked := make(chan func(bool))
	go func() {
		second, err := Lock(t.Context(), path)
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
	if _, err := Lock(t.Context(), filepath.Join(t.TempDir(), "no", "x.sock")); err == nil {
		t.Error("Lock() = nil in a folder that does not exist, want an error")
	}
}

// Lock returns when its context ends. It does not keep the lock that it gets later.
func TestLockInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	unlock, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	cause := errors.New("test")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 20*time.Millisecond, cause)
	defer cancel()
	if _, err := Lock(ctx, path); !errors.Is(err, cause) {
		t.Errorf("Lock() = %v although another caller has the lock, want the cause of the end", err)
	}
	unlock(false)
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	unlock, err = Lock(ctx, path)
	if err != nil {
		t.Fatalf("Lock() = %v after the lock was released", err)
	}
	unlock(true)
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
