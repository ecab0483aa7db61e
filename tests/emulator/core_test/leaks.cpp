// Called by LeakSanitizer at exit. A fork of a process with a runtime has its memory and not its threads: what their stacks
// refer to would count as leaked.
#include "../core/state.hpp"

extern "C" int __lsan_is_turned_off() { return emulator::is_forked() ? 1 : 0; }
