// allocator.hpp has the memory of the devices and the pinned memory, both cached.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>

namespace simdev {

// Register the allocators with torch.
void register_device_allocator();
void register_pinned_allocator();

// The memory is also used on this stream: it is not given to others before the work that the stream has when the memory
// is given back. Memory that is not simdev's is left alone.
void record_stream(const c10::DataPtr &pointer, const c10::Stream &stream);
// Reports whether the address is one of pinned or registered memory, of this allocator or of others.
bool is_pinned(const void *address);
// The same as record_stream for pinned memory, by its address. Reports whether the address is that of pinned memory of
// the allocator.
bool record_pinned(const void *address, const c10::Stream &stream);

// Gives cached memory back to the device. With `wait` it waits for the streams that use memory which is given back.
void empty_cache(bool wait);

}  // namespace simdev
