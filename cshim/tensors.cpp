// tensors.cpp checks tensors, describes their memory to the core, and finds overlaps. See tensors.hpp.
#include "tensors.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "errors.hpp"
#include "in_flight.hpp"
#include "plainly.hpp"

namespace sagecomm {

namespace {

constexpr int kUnknownType = -1;

int coreType(at::ScalarType type) {
  switch (type) {
    case at::kChar:
      return SAGECOMM_INT8;
    case at::kShort:
      return SAGECOMM_INT16;
    case at::kInt:
      return SAGECOMM_INT32;
    case at::kLong:
      return SAGECOMM_INT64;
    case at::kByte:
      return SAGECOMM_UINT8;
    case at::ScalarType::UInt16:
      return SAGECOMM_UINT16;
    case at::ScalarType::UInt32:
      return SAGECOMM_UINT32;
    case at::ScalarType::UInt64:
      return SAGECOMM_UINT64;
    case at::kBool:
      return SAGECOMM_BOOL;
    case at::kHalf:
      return SAGECOMM_FLOAT16;
    case at::kBFloat16:
      return SAGECOMM_BFLOAT16;
    case at::kFloat:
      return SAGECOMM_FLOAT32;
    case at::kDouble:
      return SAGECOMM_FLOAT64;
    case at::kComplexFloat:
      return SAGECOMM_COMPLEX64;
    case at::kComplexDouble:
      return SAGECOMM_COMPLEX128;
    case at::ScalarType::Float8_e4m3fn:
      return SAGECOMM_FLOAT8_E4M3FN;
    case at::ScalarType::Float8_e5m2:
      return SAGECOMM_FLOAT8_E5M2;
    case at::ScalarType::Float8_e4m3fnuz:
      return SAGECOMM_FLOAT8_E4M3FNUZ;
    case at::ScalarType::Float8_e5m2fnuz:
      return SAGECOMM_FLOAT8_E5M2FNUZ;
    case at::ScalarType::Float8_e8m0fnu:
      return SAGECOMM_FLOAT8_E8M0FNU;
    default:
      return kUnknownType;
  }
}

std::string label(const char* role, size_t index) {
  return std::string(role) + " " + std::to_string(index);
}

bool isBlock(const at::Tensor& t) {
  return t.is_contiguous() && !t.is_conj() && !t.is_neg();
}

at::Tensor toBlock(const at::Tensor& t) {
  const Plainly plainly;
  return t.resolve_conj().resolve_neg().contiguous();
}

// Unlike toBlock(), copies a tensor that is a block as well.
at::Tensor cloned(const at::Tensor& t) {
  const Plainly plainly;
  return t.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous);
}

sagecomm_segment writable(const at::Tensor& t) {
  return {t.mutable_data_ptr(), t.nbytes()};
}

sagecomm_segment readable(const at::Tensor& t) {
  // The core has one type for inputs and outputs; it writes to outputs only.
  return {const_cast<void*>(t.const_data_ptr()), t.nbytes()};
}

} // namespace

bool hasMemory(const at::Tensor& t) {
  if (t.numel() == 0) {
    return true;
  }
  const size_t end =
      t.is_contiguous()
          ? (static_cast<size_t>(t.storage_offset()) + static_cast<size_t>(t.numel())) * t.element_size()
          : at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size(), t.storage_offset());
  return end <= t.storage().nbytes() && t.const_data_ptr() != nullptr;
}

void Buffers::check(const char* op, const char* role, size_t index, const at::Tensor& t) {
  if (!t.defined()) {
    refuse(op, label(role, index) + " is undefined");
  }
  if (C10_UNLIKELY(!t.device().is_cpu() || device_ != nullptr)) {
    checkDevice(op, role, index, t);
  }
  if (t.layout() != at::kStrided) {
    refuse(op, label(role, index) + " is " + c10::str(t.layout()) + "; only dense tensors are supported");
  }
  if (C10_UNLIKELY(!hasMemory(t))) {
    refuse(
        op,
        label(role, index) +
            " lies outside its storage, which was freed or made smaller (as FSDP does); pass a tensor whose memory "
            "exists");
  }
  const int type = coreType(t.scalar_type());
  if (type == kUnknownType) {
    refuse(op, label(role, index) + " has the unsupported type " + c10::toString(t.scalar_type()));
  }
  if (dtype_ == kNoType) {
    dtype_ = static_cast<uint8_t>(type);
  } else if (dtype_ != type) {
    refuse(
        op,
        label(role, index) + " has the type " + c10::toString(t.scalar_type()) +
            ", the tensors before it have another one; all tensors of a call must have one type");
  }
}

void Buffers::checkDevice(const char* op, const char* role, size_t index, const at::Tensor& t) {
  const c10::Device device = t.device();
  const bool served = device.is_cpu() || (served_ != nullptr && served_->has(device.type()));
  if (!served) {
    refuse(
        op,
        label(role, index) + " is on " + device.str() + ", but this group was configured for " +
            (served_ == nullptr ? "cpu" : served_->text()));
  }
  const bool first = dtype_ == kNoType;
  if (first) {
    setDevice(device);
  } else if (device_ == nullptr || device_->device != device) {
    refuse(
        op,
        label(role, index) + " is on " + device.str() + ", the tensors before it are on " +
            (device_ == nullptr ? "cpu" : device_->device.str()) +
            "; all tensors of a call must be on the same device");
  }
  device_->tensors.push_back(t);
}

void Buffers::setDevice(c10::Device device) {
  refuseInForkedChild();
  const c10::Device exact = device.has_index() ? device : c10::impl::VirtualGuardImpl(device.type()).getDevice();
  device_ = std::make_unique<OnDevice>(OnDevice{exact, {}, {}});
}

void Buffers::noteOutput(const at::Tensor& t) {
  if (C10_UNLIKELY(device_ != nullptr) && collective_) {
    device_->outputs.emplace_back(t);
  }
}

void Buffers::prepareCopy(const at::Tensor& t) const {
  if (device_ != nullptr && collective_) {
    InFlight::awaitOutputs(Footprint(t), served_);
  }
}

const std::vector<Footprint>& Buffers::deviceOutputs() const {
  return device_->outputs;
}

std::vector<at::Tensor> Buffers::deviceTensors() const {
  std::vector<at::Tensor> all = device_->tensors;
  all.insert(all.end(), copies_.begin(), copies_.end());
  for (const auto& [_, copy] : copyBack_) {
    all.push_back(copy);
  }
  return all;
}

void Buffers::addInput(const char* op, const char* role, size_t index, const at::Tensor& t) {
  check(op, role, index, t);
  if (C10_LIKELY(isBlock(t))) {
    in_.push_back(readable(t));
    return;
  }
  prepareCopy(t);
  in_.push_back(readable(copies_.emplace_back(toBlock(t))));
}

void Buffers::checkWritable(const char* op, const char* role, size_t index, const at::Tensor& t) {
  if (at::has_internal_overlap(t) == at::MemOverlap::Yes) {
    refuse(op, label(role, index) + " has elements that share memory, as after expand(): pass a clone() of it");
  }
}

void Buffers::addOutput(const char* op, const char* role, size_t index, const at::Tensor& t, bool staged) {
  check(op, role, index, t);
  noteOutput(t);
  if (C10_LIKELY(isBlock(t) && !staged)) {
    out_.push_back(writable(t));
    return;
  }
  checkWritable(op, role, index, t);
  const Plainly plainly;
  at::Tensor copy = at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous));
  out_.push_back(writable(copy));
  copyBack_.emplace_back(t, std::move(copy));
}

void Buffers::addOutputs(const char* op, const char* role, c10::ArrayRef<at::Tensor> tensors, bool staged) {
  for (size_t i = 0; i < tensors.size() && !staged; i++) {
    for (size_t k = 0; k < i && !staged; k++) {
      staged = tensors[i].defined() && tensors[k].defined() && overlap(tensors[i], tensors[k]);
    }
  }
  for (size_t i = 0; i < tensors.size(); i++) {
    addOutput(op, role, i, tensors[i], staged);
  }
}

void Buffers::addInOut(const char* op, const char* role, size_t index, const at::Tensor& t, bool staged) {
  check(op, role, index, t);
  noteOutput(t);
  if (C10_LIKELY(isBlock(t) && !staged)) {
    in_.push_back(writable(t));
  } else {
    checkWritable(op, role, index, t);
    prepareCopy(t);
    at::Tensor copy = staged ? cloned(t) : toBlock(t);
    in_.push_back(writable(copy));
    copyBack_.emplace_back(t, std::move(copy));
  }
  out_.push_back(in_.back());
}

void Buffers::separateInput(const at::Tensor& input, int rank) {
  const auto* from = static_cast<const char*>(in_[0].data);
  const uint64_t bytes = in_[0].bytes;
  const auto separate = [&] {
    prepareCopy(input);
    in_[0] = readable(copies_.emplace_back(cloned(input)));
  };
  const bool single = out_.size() == 1;
  for (size_t i = 0; i < out_.size(); i++) {
    const auto* to = static_cast<const char*>(out_[i].data);
    const uint64_t own = single ? static_cast<uint64_t>(rank) * bytes : 0;
    const bool mine = (single || i == static_cast<size_t>(rank)) && from == to + own;
    if (C10_UNLIKELY(bytes > 0 && from < to + out_[i].bytes && to < from + bytes && !mine)) {
      separate();
      return;
    }
  }
}

Buffers::Own Buffers::ownInput(size_t index, const at::Tensor& t) {
  const auto standsFor = [&](const at::Tensor& copy) { return copy.const_data_ptr() == in_[index].data; };
  for (const at::Tensor& copy : copies_) {
    if (standsFor(copy)) {
      return {copy, copy};
    }
  }
  for (const auto& [_, copy] : copyBack_) {
    if (standsFor(copy)) {
      return {copy, copy};
    }
  }
  prepareCopy(t);
  const Plainly plainly;
  const at::Tensor& memory =
      copies_.emplace_back(at::empty(t.sizes(), t.options().memory_format(at::MemoryFormat::Contiguous)));
  in_[index] = readable(memory);
  return {memory, t};
}

namespace {

Buffers::Blocks lengths(const Buffers::Segments& segments) {
  Buffers::Blocks bytes;
  for (const sagecomm_segment& s : segments) {
    bytes.push_back(s.bytes);
  }
  return bytes;
}

} // namespace

void Buffers::setInBlocks() {
  inBlocks_ = lengths(in_);
}

void Buffers::setOutBlocks() {
  outBlocks_ = lengths(out_);
}

namespace {

// The same for two extents that meet.
bool runsMeet(const Extent& first, const Runs& x, const Extent& second, const Runs& y) {
  const size_t step = std::gcd(x.step, y.step);
  if (step == 0) {
    return true;
  }
  const size_t ahead = second.from >= first.from ? static_cast<size_t>(second.from - first.from) % step
                                                 : (step - static_cast<size_t>(first.from - second.from) % step) % step;
  return ahead < x.run || ahead + y.run > step;
}

} // namespace

Runs::Runs(const at::Tensor& t) : run(t.element_size()), step(0) {
  c10::SmallVector<std::pair<size_t, size_t>, 8> dims; // stride in bytes, size
  for (int64_t d = 0; d < t.dim(); d++) {
    if (t.size(d) > 1) {
      dims.emplace_back(static_cast<size_t>(t.stride(d)) * t.element_size(), static_cast<size_t>(t.size(d)));
    }
  }
  std::sort(dims.begin(), dims.end());
  for (const auto& [stride, size] : dims) {
    if (step == 0 && stride == run) {
      run *= size;
    } else {
      step = std::gcd(step, stride);
    }
  }
}

void multiply(const at::Tensor& to, const at::Tensor& input, const at::Tensor& factor) {
  const Plainly plainly;
  const at::ScalarType part = c10::toRealValueType(input.scalar_type());
  const at::ScalarType wide = part == at::kHalf || part == at::kBFloat16 ? at::kFloat : part;
  const auto parts = [](const at::Tensor& t) { return t.is_complex() ? at::view_as_real(t) : t; };
  if (input.is_cuda()) {
    // One kernel multiplies in the wider type. The factor has one dimension, so that it takes part in torch's choice of that type, and so
    // the input has one at least.
    at::Tensor product = parts(to).unsqueeze(0);
    at::mul_out(product, parts(input).unsqueeze(0), factor.reshape({1}).to(wide));
  } else { // a kernel for two types may round the factor to the input's
    parts(to).copy_(parts(input).to(wide).mul(factor.reshape({}).to(wide)));
  }
}

Extent extentOf(const at::Tensor& t) {
  if (!t.has_storage() || t.numel() == 0) {
    return {nullptr, nullptr};
  }
  const auto* from = static_cast<const char*>(t.const_data_ptr());
  return {from, from + at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.element_size())};
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const Extent first = extentOf(a);
  const Extent second = extentOf(b);
  if (!first.meets(second)) {
    return false;
  }
  return runsMeet(first, Runs(a), second, Runs(b));
}

bool overlap(const Footprint& a, const Footprint& b) {
  return a.device == b.device && a.extent.meets(b.extent) && runsMeet(a.extent, a.runs, b.extent, b.runs);
}

bool sameMemory(const at::Tensor& a, const at::Tensor& b) {
  const bool sameOrder = (a.is_contiguous() && b.is_contiguous() && a.numel() == b.numel()) ||
                         (a.sizes() == b.sizes() && a.strides() == b.strides());
  return sameOrder && a.const_data_ptr() == b.const_data_ptr() && a.scalar_type() == b.scalar_type() &&
         a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

void Buffers::keep(Buffers& other) {
  std::move(other.copies_.begin(), other.copies_.end(), std::back_inserter(copies_));
  std::move(other.copyBack_.begin(), other.copyBack_.end(), std::back_inserter(copyBack_));
  other.copies_.clear();
  other.copyBack_.clear();
  if (C10_UNLIKELY(other.device_ != nullptr)) {
    served_ = other.served_;
    if (device_ == nullptr) {
      device_ = std::make_unique<OnDevice>(OnDevice{other.device_->device, {}, {}});
    }
    device_->tensors.insert(device_->tensors.end(), other.device_->tensors.begin(), other.device_->tensors.end());
    device_->outputs.insert(device_->outputs.end(), other.device_->outputs.begin(), other.device_->outputs.end());
  }
}

void Buffers::copyBack() {
  const Plainly plainly;
  for (auto& [output, copy] : copyBack_) {
    output.copy_(copy);
  }
}

} // namespace sagecomm
