package service

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock locks the socket at a path against others who want to start or end the service there. It
// makes the standard folder. The lock is released by the function that it returns, which also
// removes the file of the lock if remove is true, and at the end of the process. If ctx ends first,
// Lock returns its cause.
func Lock(ctx context.Context, path string) (unlock func(remove bool), err error) {
	if err := makeDir(filepath.Dir(path)); err != nil {
		return nil, err
	}
	name := LockPath(path)
	for {
		fd, current, err := lockFile(ctx, name)
		switch {
		case err != nil:
			return nil, fmt.Errorf("lock %s: %w", name, err)
		case current:
			return func(remove bool) {
				if remove {
					_ = unix.Unlink(name)
				}
				_ = unix.Close(fd)
			}, nil
		}
		_ = unix.Close(fd)
	}
}

// LockPath returns the file of the lock of the socket at a path.
func LockPath(path string) string { return strings.TrimSuffix(path, suffix) + ".lock" }

// lockFile opens and locks a file. current is false if another process has removed it meanwhile.
func lockFile(ctx context.Context, name string) (_ int, current bool, err error) {
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return -1, false, err
	}
	locked := make(chan error, 1)
	go func() {
		var err error
		for {
			if err = unix.Flock(fd, unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
				break
			}
		}
		locked <- err
	}()
	select {
	case err = <-locked:
	case <-ctx.Done():
		// The kernel does not end the call of the goroutine, so the lock is released after it.
		go func() {
			<-locked
			_ = unix.Close(fd)
		}()
		return -1, false, context.Cause(ctx)
	}
	var mine, there unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &mine)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, false, err
	}
	current = unix.Lstat(name, &there) == nil && there.Ino == mine.Ino && there.Dev == mine.Dev
	return fd, current, nil
}

// Answers reports whether a service answers at a path, and lets this user connect.
func Answers(path string) bool { return Check(path) == nil }

// Check returns nil if a service answers at a path. If this user may not use the socket, the error
// wraps fs.ErrPermission.
func Check(path string) error {
	c, err := connect(path)
	if err == nil {
		_ = c.Close()
	}
	return err
}

// HasMembers reports whether the service has members.
func (s *Server) HasMembers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.occupied()
}

// occupied is HasMembers with s.mu held.
func (s *Server) occupied() bool {
	return slices.ContainsFunc(s.slots[:], func(n *session) bool { return n != nil })
}
