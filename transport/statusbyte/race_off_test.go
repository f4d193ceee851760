//go:build !race

package statusbyte

const raceEnabled = false
