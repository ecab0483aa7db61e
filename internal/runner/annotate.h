/* annotate.h tells an emulator of devices, where the process runs on one, what the CPU does with pinned memory
 * (tests/emulator/core/annotate.h). Without an emulator each function is the test of a pointer. */
#ifndef SCR_ANNOTATE_H
#define SCR_ANNOTATE_H

#include <stddef.h>
#include <stdint.h>

__attribute__((weak)) void emulator_host_read(const void *address, size_t length, const char *what);
__attribute__((weak)) void emulator_host_write(const void *address, size_t length, const char *what);
__attribute__((weak)) void emulator_release(const void *key);
__attribute__((weak)) void emulator_acquire(const void *key);
__attribute__((weak)) void emulator_store(const void *flag, uint32_t value);

static inline void scr_note_reads(const void *address, size_t length, const char *what) {
  if (emulator_host_read) emulator_host_read(address, length, what);
}
static inline void scr_note_writes(const void *address, size_t length, const char *what) {
  if (emulator_host_write) emulator_host_write(address, length, what);
}
/* The thread has seen the new value of a flag; is about to store one; hands over what it did to a thread that acquires. */
static inline void scr_note_acquired(const void *flag) {
  if (emulator_acquire) emulator_acquire(flag);
}
static inline void scr_note_stored(const void *flag, uint64_t value) {
  if (emulator_store) emulator_store(flag, (uint32_t)value);
}
static inline void scr_note_released(const void *flag) {
  if (emulator_release) emulator_release(flag);
}

#endif
