// flight.hpp: what the package needs to serve torch's dumps of the flight recorder.
#pragma once

#include <string>

namespace sagecomm {

// The records of all groups as the core's JSON. Without the GIL.
std::string flightRecords();

// Hands a pickled dump to where torch's own dumps of that rank go: a registered writer, by default a file.
void writeDump(int rank, const std::string& dump);

} // namespace sagecomm
