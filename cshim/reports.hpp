// reports.hpp fetches the texts that the core writes: what it reports about its groups and this host, and its answers to
// questions about algorithms. All are JSON but the metrics. Python's functions of the same names call them, on any
// thread, without the GIL.
#pragma once

#include <string>

namespace sagecomm {

// The configuration variables.
std::string describeEnvironment();

// Which vendors' runtimes this process can use. It starts them.
std::string describeDevices();

// The flight recorder's records of all groups.
std::string flightRecords();

// The statistics of all groups in Prometheus's text format.
std::string metrics();

// The processors, memory, devices and links of this host. It needs no group.
std::string topology();

// The predicted times of a collective on a described cluster.
std::string simulate(const std::string& question);

// The algorithms that can carry out a collective, and which is chosen.
std::string explain(const std::string& question);

// A tuning file made from measurements.
std::string tune(const std::string& measurements);

} // namespace sagecomm
