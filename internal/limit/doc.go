// Package limit decides what a peer may use, by the peer's address: access lists, shares of a
// bounded resource, and rates.
//
// A single host can use any number of addresses of its IPv6 subnet. Shares and rates are therefore
// counted per prefix: an IPv4 address (/32) or an IPv6 subnet (/64). Everything has a fixed size
// and the time is a parameter, so the packages of the engine can use it. None of the types is safe
// for concurrent use.
//
// Reading order:
//
//   - prefix.go: Prefix, the unit that limits apply to; Most
//   - access.go: Access, lists of permitted and refused prefixes
//   - shares.go: Shares, counts of a resource per prefix and in total
//   - rate.go: Rate, events per second per prefix and in total
package limit
