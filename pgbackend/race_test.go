//go:build race

package pgbackend

const raceDetector = true
