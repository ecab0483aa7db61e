package pgbackend

import "unsafe"

// bytePointer is the address of text for a system call that only reads it before it returns.
func bytePointer(text []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(text))) }
