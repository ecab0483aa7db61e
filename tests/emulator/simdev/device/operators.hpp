// operators.hpp runs aten's operators on the device: each is the CPU's kernel as a task of the current stream.
#pragma once

#include <string>
#include <vector>

namespace simdev {

// Returns and forgets the errors of operators that failed when they ran.
std::vector<std::string> take_operator_errors();

}  // namespace simdev
