//go:build !race

package rftp

const raceEnabled = false
