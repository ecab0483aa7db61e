// members.hpp: what a process calls itself towards those that name the members of a group.
#pragma once

#include <string>
#include <vector>

#include "options.hpp"

namespace sagecomm {

// A handle for get_reconfigure_handle(): no other group of any process has it. Handles sort as the ranks in the job do.
std::string newHandle(const GroupOptions& options, int rank);

// The rank in the job of the process that made a handle. Refuses what is no handle.
uint64_t globalRankOf(const std::string& handle);

} // namespace sagecomm
