// devices.cpp parses the names of device types. See devices.hpp.
#include "devices.hpp"

namespace sagecomm {

Devices::Devices(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const c10::DeviceType type = c10::Device(name).type();
    types_.set(static_cast<size_t>(type));
    if (type != c10::DeviceType::CPU && !accelerator_) {
      accelerator_ = type;
    }
    text_ += (text_.empty() ? "" : ", ") + name;
  }
}

} // namespace sagecomm
