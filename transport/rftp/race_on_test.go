//go:build race

package rftp

const raceEnabled = true
