//go:build !race

package pgbackend

const raceDetector = false
