// hooks.hpp registers simdev's part of at::PrivateUse1HooksInterface.
#pragma once

#include <ATen/core/Generator.h>

namespace simdev {

void register_hooks();
// Raises if there is no such device.
const at::Generator &default_generator(int device);

}  // namespace simdev
