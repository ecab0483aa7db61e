// devices.hpp has the types of devices whose tensors a group takes. A Devices is a constant.
#pragma once

#include <bitset>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

namespace sagecomm {

class Devices {
 public:
  // Takes names as torch.device does: "cpu", "cuda", or the name of a registered PrivateUse1 device.
  explicit Devices(const std::vector<std::string>& names);

  bool has(c10::DeviceType type) const {
    return types_[static_cast<size_t>(type)];
  }
  // The type that is not the CPU; nothing if the group takes CPU tensors only.
  std::optional<c10::DeviceType> accelerator() const {
    return accelerator_;
  }
  // For messages: "cpu, cuda".
  const std::string& text() const {
    return text_;
  }

 private:
  std::bitset<static_cast<size_t>(c10::DeviceType::COMPILE_TIME_MAX_DEVICE_TYPES)> types_;
  std::optional<c10::DeviceType> accelerator_;
  std::string text_;
};

} // namespace sagecomm
