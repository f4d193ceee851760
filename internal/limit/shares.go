package limit

import "net/netip"

// Shares counts the units of a resource that are in use, per prefix and in total. It keeps an entry
// per prefix that uses something.
type Shares struct {
	perPrefix, total int64
	used             int64
	by               map[netip.Prefix]int64
}

// NewShares returns Shares with the given limits. A limit of 0 or less means no limit.
func NewShares(perPrefix, total int64) *Shares {
	return &Shares{perPrefix: perPrefix, total: total, by: map[netip.Prefix]int64{}}
}

// Take reserves n units, which must be positive, for the prefix of a. It returns false and reserves
// nothing if that exceeds a limit.
func (s *Shares) Take(a netip.Addr, n int64) bool {
	p := Prefix(a)
	if exceeds(s.used, n, s.total) || exceeds(s.by[p], n, s.perPrefix) {
		return false
	}
	s.used += n
	s.by[p] += n
	return true
}

// TakeFair is Take, but it also returns false if the prefix would then hold more units than are
// left for all others. One unit in excess is allowed, so that a single unit can be taken. One
// prefix therefore gets at most half of the total, and a new prefix finds something as long as
// there are few others.
func (s *Shares) TakeFair(a netip.Addr, n int64) bool {
	if left := s.total - s.used; s.total > 0 && (n > left || s.by[Prefix(a)]+n > left-n+1) {
		return false
	}
	return s.Take(a, n)
}

// exceeds reports whether used+n exceeds limit, without overflow.
func exceeds(used, n, limit int64) bool { return limit > 0 && n > limit-used }

// Return gives back n units that Take reserved for the prefix of a.
func (s *Shares) Return(a netip.Addr, n int64) {
	p := Prefix(a)
	s.used -= n
	if s.by[p] -= n; s.by[p] <= 0 {
		delete(s.by, p)
	}
}

// Used returns the units in use by the prefix of a, and in total.
func (s *Shares) Used(a netip.Addr) (prefix, total int64) { return s.by[Prefix(a)], s.used }
