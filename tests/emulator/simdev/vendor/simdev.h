/* simdev.h is the runtime library of the simdev devices, as a vendor would ship it: C functions for programs without torch,
 * and for libraries that put work on a native stream of torch. Streams and addresses are the same as in torch.
 *
 * The library is libsimdev.so. It needs libemulator.so and nothing else. A process that also uses torch imports simdev
 * first, which sets the rules of the device; without torch simdev_init does.
 *
 * Functions return 0, or a code that simdev_error_name() names. As with ACL, a thread chooses a device before it uses one,
 * and a stream is used while its device is the current one. */
#ifndef SIMDEV_H
#define SIMDEV_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *simdev_stream;
typedef void *simdev_event;

/* Sets the rules of the device. It is legal after another runtime did, and does nothing then. */
int simdev_init(void);
/* Returns the name of a code, "unknown" if there is no such code. The text stays valid. */
const char *simdev_error_name(int code);

int simdev_device_count(int *count);
int simdev_set_device(int device);
int simdev_get_device(int *device);
int simdev_device_synchronize(void);

int simdev_malloc(size_t size, void **address);
int simdev_free(void *address);
int simdev_malloc_host(size_t size, void **address); /* pinned */
int simdev_free_host(void *address);
int simdev_register_host(void *address, size_t size);
int simdev_unregister_host(void *address);

int simdev_stream_create(simdev_stream *stream);
int simdev_stream_destroy(simdev_stream stream);
int simdev_stream_query(simdev_stream stream, int *complete);
int simdev_stream_synchronize(simdev_stream stream);

/* One of the addresses is device memory. From pageable memory the bytes are read before the call returns, to pageable
 * memory the copy is complete when it returns. Between two places of host memory it is not supported. */
int simdev_copy_async(void *to, const void *from, size_t size, simdev_stream stream);
int simdev_fill_async(void *address, int byte, size_t size, simdev_stream stream);

int simdev_event_create(simdev_event *event);
int simdev_event_destroy(simdev_event event);
int simdev_event_record(simdev_event event, simdev_stream stream);
int simdev_event_query(simdev_event event, int *complete);
int simdev_event_synchronize(simdev_event event);
int simdev_stream_wait_event(simdev_stream stream, simdev_event event);

/* Words of 32 bits in device, pinned or registered memory. The wait ends when (int32_t)(*word - value) >= 0. */
int simdev_stream_write_value(simdev_stream stream, uint32_t *word, uint32_t value);
int simdev_stream_wait_value(simdev_stream stream, uint32_t *word, uint32_t value);
/* The function runs on a thread of the device. It may call nothing here. */
int simdev_launch_host_function(simdev_stream stream, void (*function)(void *), void *argument);

#ifdef __cplusplus
}
#endif
#endif
