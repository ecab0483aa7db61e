//go:build race

package ranks

const raceDetector = true
