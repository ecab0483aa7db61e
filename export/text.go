// text.go: hands text to C callers.
package main

/*
#include "sagecomm.h"
*/
import "C"

import "unsafe"

// writeText is the body of an exported function that fills the caller's buffer with text and returns the bytes needed. A
// panic becomes a status.
func writeText(to *C.char, n C.size_t, text func() ([]byte, error)) (bytes C.int64_t) {
	var status C.int32_t
	defer func() {
		if status != 0 {
			bytes = C.int64_t(status)
		}
	}()
	defer guard(&status, nil)
	b, err := text()
	if err != nil {
		return C.SAGECOMM_INTERNAL
	}
	return copyText(b, to, n)
}

// copyText copies text with a closing NUL into the caller's buffer, if it has room, and returns the bytes needed.
func copyText(text []byte, to *C.char, n C.size_t) C.int64_t {
	if need := len(text) + 1; to != nil && n >= C.size_t(need) {
		buffer := unsafe.Slice((*byte)(unsafe.Pointer(to)), need)
		copy(buffer, text)
		buffer[need-1] = 0
	}
	return C.int64_t(len(text) + 1)
}
