package vendor

import (
	"fmt"
	"unsafe"

	"sagecomm/internal/lazylink"
)

// Usable returns why a library cannot be used whose functions lazylink.Open has looked for. title is the library's name for texts. The
// last function is the mark of this project's own library with the same interface, which calls this engine, so that this engine must
// not call it.
func Usable(file, title string, names *unsafe.Pointer, addresses []unsafe.Pointer) error {
	functions, mark := addresses[:len(addresses)-1], addresses[len(addresses)-1]
	if mark != nil {
		return fmt.Errorf("the %s of this process is sagecomm's own; %s is behind it", file, title)
	}
	if name := lazylink.Lacking(names, functions); name != "" {
		return fmt.Errorf("the %s of this process has no %s: it is too old", file, name)
	}
	return nil
}
