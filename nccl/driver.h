/* driver.h: what memory.c needs of CUDA's driver besides what the frame does. */
#ifndef SAGECOMM_NCCL_DRIVER_H
#define SAGECOMM_NCCL_DRIVER_H

#include "../facade/facade.h"

/* Both return 0, or the number of the driver's error. */
int driver_allocate(void **memory, size_t bytes);
int driver_free(void *memory);

#endif
