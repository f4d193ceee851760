// Package clock provides a clock that is cheaper to read than the system clock. It uses the
// processor's counter between readings of the system clock. On virtual machines, reading the
// counter takes a quarter of the time of reading the system clock.
//
// Reading order:
//
//   - clock.go: Clock
//   - counter_asm.go, counter_none.go: the processor's counter
//   - simulated.go, wall_unix.go, wall_windows.go: whether time is simulated by testing/synctest
package clock
