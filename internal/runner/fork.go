package runner

// #include "runner.h"
import "C"

// CloseInChild lets forked children close a descriptor, which they have no use for.
func CloseInChild(fd uintptr) { C.scr_close_in_child(C.int32_t(fd), true) }

// KeepInChild ends what CloseInChild began. Requires: the descriptor is still open, so that nothing else can have its number yet.
func KeepInChild(fd uintptr) { C.scr_close_in_child(C.int32_t(fd), false) }
