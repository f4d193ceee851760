//go:build !race

package slidingwindow

const raceEnabled = false
