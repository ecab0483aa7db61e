// members.hpp makes and reads handles: the names under which processes become members of a group in reconfigure(). Any
// thread may call it.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace sagecomm {

// Returns a handle that no other group of any process has. Handles sort as the ranks in the job do.
std::string newHandle(const GroupOptions& options, int rank);

// Returns the rank in the job of the process that made a handle. Refuses any other text.
uint64_t globalRankOf(const std::string& handle);

} // namespace sagecomm
