/* annotate.h tells the emulator what the CPU does with pinned memory and how host threads hand work over to each other, and
 * gives tests the checker's reports. Programs that also run without the emulator declare these functions weak and call
 * those that are there. */
#ifndef EMULATOR_ANNOTATE_H
#define EMULATOR_ANNOTATE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The calling thread reads or writes `length` bytes of pinned memory. Inside a host function the access belongs to the
 * function's place in its stream. */
void emulator_host_read(const void *address, size_t length, const char *what);
void emulator_host_write(const void *address, size_t length, const char *what);

/* What the calling thread did before the release comes before everything that a thread does after an acquire of the same
 * key that follows it. A key is any address. If it is the address of a flag word that streams write or wait for, the release
 * precedes the store of the flag by the CPU, the acquire follows the load that saw its new value, and streams take part. */
void emulator_release(const void *key);
void emulator_acquire(const void *key);

/* The calling thread is about to store a value to a flag word that streams write or wait for. It is a release of the flag as
 * well. A wait of a stream is ordered behind the stores that may satisfy it, so a store that goes without this, such as one
 * that sets a flag back, lets a wait seem satisfied by an earlier value. */
void emulator_store(const void *flag, uint32_t value);

/* The number of reports, and their text. The text is cut to `size` bytes with its NUL; the result is the length of the whole
 * text. */
size_t emulator_reports(void);
size_t emulator_report_text(char *text, size_t size);
void emulator_reset_reports(void);

/* Replaces the fault plan (fault_plan.hpp), but not the memory of the devices. Calls are counted from here on. Returns 0, or -1 if
 * the text is no plan. */
int emulator_plan(const char *rules);

/* Nothing on the stream begins between emulator_hold and emulator_release_stream. A task that runs is not stopped. They
 * return 0, or -1 if there is no such stream. */
int emulator_hold(void *stream);
int emulator_release_stream(void *stream);

/* The number of tasks that have run whose description, as reports have it, begins with this text. */
size_t emulator_finished(const char *begin);

/* The number of objects that graphs may hold, of which the end is told, until that is done. */
size_t emulator_objects(void);

/* The number of records of events that have waited because the device had no event left (EMULATOR_EVENTS). */
size_t emulator_waited_records(void);

/* The bytes of all memory of a kind that this process has, and the most that it has had at a time. Kinds are "pinned", "registered",
 * "device" and "imported", which is memory of the device that another process has shared; of others there are 0 bytes. */
size_t emulator_bytes(const char *kind);
size_t emulator_most_bytes(const char *kind);

/* The number of threads that a call which has the device to itself keeps: 0 if there is no such call, else 1 for its own thread and
 * one for each call of other threads that waits until it returns. */
int emulator_kept_threads(int device);

#ifdef __cplusplus
}
#endif
#endif
