//go:build race

package loopback

const raceEnabled = true
