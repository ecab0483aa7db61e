//go:build !cuda

// Package cuda offers nothing, because it was built without the tag cuda: see cuda.go.
package cuda

import (
	"errors"

	"sagecomm/internal/coll"
	"sagecomm/internal/device"
)

// Driver is never made.
type Driver struct {
	device.Ordering
	device.Sharer
}

var errNotBuilt = errors.New("this library was built without cuda.h")

// Present returns an error.
func Present() error { return errNotBuilt }

// Open returns an error.
func Open(int) (*Driver, error) { return nil, errNotBuilt }

// Devices returns an error.
func Devices() (int, error) { return 0, errNotBuilt }

// Captured returns an error.
func Captured(int, uintptr) error { return errNotBuilt }

// Locate finds nothing.
func Locate(uintptr) (int, bool, error) { return 0, false, nil }

// New returns an error.
func New(coll.Op) (*Driver, error) { return nil, errNotBuilt }

// LoadKernels returns an error.
func (*Driver) LoadKernels() error { return errNotBuilt }

// Reduce returns an error.
func (*Driver) Reduce(device.Stream, device.Reduction) error { return errNotBuilt }

// CaptureOf returns an error.
func (*Driver) CaptureOf(device.Stream) (uint64, error) { return 0, errNotBuilt }

// Relaxed returns an error.
func (*Driver) Relaxed(func() error) error { return errNotBuilt }

// NewMark returns an error.
func (*Driver) NewMark() (device.Mark, error) { return nil, errNotBuilt }

// NewGraphCount returns nil: there is nothing that could be captured.
func (*Driver) NewGraphCount() device.GraphCount { return nil }
