//go:build faults

package runner

// #cgo CFLAGS: -DSCR_FAULTS
import "C"
