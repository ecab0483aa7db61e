// flight_dump.hpp writes dumps of the flight recorder. Python calls both functions, on any thread, without the GIL.
#pragma once

#include <optional>
#include <string>

namespace sagecomm {

// Writes this rank's file for torch's analyser. Without a prefix the file goes where dumps of failures go.
void dumpFlight(const std::optional<std::string>& prefix);

// Hands a pickled dump to torch's DebugInfoWriter of that rank: one that the user registered, otherwise torch's, which
// writes a file.
void writeDump(int rank, const std::string& dump);

} // namespace sagecomm
