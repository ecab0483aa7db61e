/* framework.h is a framework with a launch queue on the host, as torch_npu is one: a sagecomm_bridge over a vendor's runtime. What
 * the framework does with streams waits in the queue until somebody asks for a handle, or until framework_drain(). */
#ifndef FRAMEWORK_H
#define FRAMEWORK_H

#include <stdbool.h>
#include <stdint.h>

#include "../../../export/sagecomm.h"

typedef struct framework framework;

/* Makes a framework for the vendor's library with that name, whose operations come from a stream of the device, which is the current
 * one. NULL if the library lacks something. */
framework *framework_new(const char *library, const char *device_name, uintptr_t caller);
const sagecomm_bridge *framework_bridge(framework *f);
/* Whether asking for a handle leaves the queue as it is: a fault, that of a handle which was kept from earlier. */
void framework_keeps_handles(framework *f, bool keeps);
/* The framework cannot tell whether the caller's stream is being captured. */
void framework_may_be_captured(framework *f);
/* Whether the buffers of an operation are to be kept until the process ends. */
bool framework_kept(const framework *f);
/* The framework keeps no buffers: it refuses, or its table is one of before there was a function for that. */
void framework_refuses_to_keep(framework *f);
void framework_is_older(framework *f);
/* Its table is one of before there were kernels that multiply and divide: behind the end of the table is what no caller may call. */
void framework_scales_not(framework *f);
/* How often the library has asked whether a signal has come. */
int framework_asked(const framework *f);
/* Puts a copy into the caller's stream, by the queue. */
void framework_copy(framework *f, uintptr_t to, uintptr_t from, uintptr_t bytes, bool to_device);
/* Makes the caller's stream wait for the end of the operation, by the queue: for what join() was called with. */
void framework_wait(framework *f);
/* Ends an operation that is complete: does what join_later() was called with, or makes the caller's stream wait as framework_wait(). */
void framework_finish(framework *f);
/* Does all that is queued. */
void framework_drain(framework *f);
/* The number of entries in the queue. */
int framework_queued(const framework *f);
/* What join_later() was called with; the number of copies, -1 if it was not called. */
int framework_end(const framework *f, sagecomm_copy *first, uintptr_t *stream, uint32_t **word, uint32_t *value);

#endif
