package pgbackend

import "unsafe"

// bytePointer returns the address of text, for a system call that reads the text only before it returns.
func bytePointer(text []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(text))) }
