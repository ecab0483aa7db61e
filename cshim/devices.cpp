// devices.cpp parses the names of device types. See devices.hpp.
#include "devices.hpp"

namespace sagecomm {

Devices::Devices(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    types_.set(static_cast<size_t>(c10::Device(name).type()));
    text_ += (text_.empty() ? "" : ", ") + name;
  }
}

} // namespace sagecomm
