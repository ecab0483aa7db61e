/* driver.h: what memory.c needs of CUDA's driver besides what the frame does. */
#ifndef SAGECOMM_NCCL_DRIVER_H
#define SAGECOMM_NCCL_DRIVER_H

#include "../facade/facade.h"

/* Whether the process has made the context of a device that CUDA's runtime uses. */
bool driver_is_used(int device);
/* Both return 0, or the number of the driver's error. */
int driver_allocate(void **memory, size_t bytes);
int driver_free(void *memory);

#endif
