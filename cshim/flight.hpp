// flight.hpp: what the core tells about its groups: the flight recorder for torch's dumps, metrics; and about
// hosts, this one and described ones.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace sagecomm {

// The records of all groups as the core's JSON. Without the GIL.
std::string flightRecords();

// The statistics of all groups in Prometheus's text format. Without the GIL.
std::string metrics();

// What this host is made of, as the core's JSON. Needs no group. Without the GIL.
std::string topology();

// What collectives would take on a described cluster: the core's answer to a question, both JSON. Without the GIL.
std::string simulate(const std::string& question);
std::string explain(const std::string& question);
std::string tune(const std::string& measurements);

// Writes this rank's file for torch's analyser; nullopt: to where failures are dumped. Without the GIL.
void dumpFlight(const std::optional<std::string>& prefix);

// Hands a pickled dump to where torch's own dumps of that rank go: a registered writer, by default a file.
void writeDump(int rank, const std::string& dump);

} // namespace sagecomm
