//go:build !race

package rftp

const raceDetector = false
