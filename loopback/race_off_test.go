//go:build !race

package loopback

const raceEnabled = false
