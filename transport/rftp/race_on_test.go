//go:build race

package rftp

const raceDetector = true
