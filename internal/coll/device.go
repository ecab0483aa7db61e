package coll

import "fmt"

// DeviceType is the type of the memory of an operation's buffers. Numbers are those of c10::DeviceType
// (torch/headeronly/core/DeviceType.h), which torch keeps stable.
type DeviceType uint8

// The types that engines of this library name. Any other number is a device all the same.
const (
	HostMemory  DeviceType = 0
	CUDA        DeviceType = 1
	PrivateUse1 DeviceType = 20
)

// DeviceTypeCount is above the numbers of all types: torch 2.15 has 21 of them.
const DeviceTypeCount DeviceType = 64

func (t DeviceType) String() string {
	switch t {
	case HostMemory:
		return "cpu"
	case CUDA:
		return "cuda"
	case PrivateUse1:
		return "privateuseone"
	}
	return fmt.Sprintf("device type %d", uint8(t))
}

// Device is the device on which the buffers of an operation lie. The zero Device is host memory.
type Device struct {
	Type  DeviceType
	Index int
}

// IsHost reports whether the buffers are host memory.
func (d Device) IsHost() bool { return d.Type == HostMemory }

// String returns the device as torch writes it: "cpu", "cuda:1".
func (d Device) String() string {
	if d.IsHost() {
		return d.Type.String()
	}
	return fmt.Sprintf("%v:%d", d.Type, d.Index)
}

// Ordering says when the caller's stream waits for an operation on a device. The operation itself is in streams of the
// library, behind what the caller's stream holds. Numbers are those of sagecomm_ordering.
type Ordering uint8

// The orderings.
const (
	InStream Ordering = iota // at once
	Beside                   // when the caller makes it wait, through its bridge; refused without one

	OrderingCount // number of orderings
)
