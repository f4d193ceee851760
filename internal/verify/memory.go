package verify

import "github.com/gorxe/gorxe/roce"

// Atomic returns the value that OpCmpSwap or OpFetchAdd stores if it finds old.
func Atomic(op roce.Op, old, compare, swapAdd uint64) uint64 {
	switch {
	case op == roce.OpFetchAdd:
		return old + swapAdd
	case old == compare:
		return swapAdd
	}
	return old
}

// Diff returns the range of bytes in which a and b, which have the same length, differ. The range
// is empty if they are equal.
func Diff(a, b []byte) (start, end int) {
	for start < len(a) && a[start] == b[start] {
		start++
	}
	end = len(a)
	for end > start && a[end-1] == b[end-1] {
		end--
	}
	if start == end {
		return 0, 0
	}
	return start, end
}
