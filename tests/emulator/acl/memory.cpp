// Memory, copies, and words that streams write and wait for.
#include <map>
#include <mutex>

#include "acl.hpp"

namespace acl {
namespace {

constexpr uintptr_t page = 4096;
// What a device's address of pinned memory lies above the host's: no address of the host is there, nor one of the emulator.
constexpr uintptr_t apart = uintptr_t{1} << 52;

std::mutex mutex;
std::map<uintptr_t, size_t> registered;  // host memory that devices can reach, by address

uintptr_t address(const void *pointer) { return reinterpret_cast<uintptr_t>(pointer); }
bool is_mapped(const void *pointer) { return address(pointer) >= apart; }

enum Kind { host_to_host, host_to_device, device_to_host, device_to_device, by_address };

emulator::CopyKind kind_of(int kind) {
  using emulator::CopyKind;
  constexpr CopyKind kinds[] = {CopyKind::host_to_host, CopyKind::host_to_device, CopyKind::device_to_host,
                                CopyKind::device_to_device, CopyKind::any};
  return kinds[kind];
}

aclError check_copy(const void *to, size_t room, const void *from, size_t size, int kind) {
  REQUIRE(to != nullptr && from != nullptr && size > 0, invalid_param);
  REQUIRE(size <= room, invalid_param);
  REQUIRE(kind >= host_to_host && kind <= by_address, invalid_param);
  REQUIRE(!is_mapped(to) && !is_mapped(from), rt_param_invalid);  // a mapped address is for the device alone
  return success;
}

}  // namespace

void *host_of(void *mapped) {
  if (!is_mapped(mapped)) return nullptr;
  std::lock_guard lock(mutex);
  uintptr_t at = address(mapped) - apart;
  auto next = registered.upper_bound(at);
  if (next == registered.begin()) return nullptr;
  auto [base, size] = *std::prev(next);
  return at - base < size ? reinterpret_cast<void *>(at) : nullptr;
}

}  // namespace acl

extern "C" {

aclError aclrtMalloc(void **memory, size_t size, int policy) {
  BEGIN_IN_CONTEXT(memory, size, policy);
  REQUIRE(memory != nullptr && size > 0 && policy >= 0 && policy <= 7, acl::invalid_param);
  const aclError status = acl::result(emulator::allocate(size, memory));
  return skin::given(status, status == acl::success ? *memory : nullptr);
}

// As acl_rt.h declares it: where memory is, and pages of it.
struct acl_pointer_attributes {
  uint32_t device;
  int32_t kind;
  uint32_t page_bytes, reserved[4];
};

aclError aclrtPointerGetAttributes(const void *memory, acl_pointer_attributes *attributes) {
  BEGIN(memory, attributes);
  REQUIRE(memory != nullptr && attributes != nullptr, acl::invalid_param);
  enum { host = 0, device = 1, unregistered = 2 };
  emulator::MemoryAttributes found;
  aclError status = acl::result(emulator::memory_attributes(memory, &found));
  REQUIRE(status == acl::success, status);
  *attributes = {};
  attributes->kind = unregistered;
  if (found.kind == emulator::MemoryKind::pinned || found.kind == emulator::MemoryKind::registered)
    attributes->kind = host;
  else if (found.kind != emulator::MemoryKind::pageable) {
    attributes->kind = device;
    attributes->device = static_cast<uint32_t>(found.device);
  }
  return acl::success;
}

aclError aclrtFree(void *memory) {
  BEGIN_IN_CONTEXT(memory);
  return acl::result(emulator::release(memory));
}

// The start is aligned to 64 bytes and to no more, as the documentation says.
aclError aclrtMallocHost(void **memory, size_t size) {
  BEGIN_IN_CONTEXT(memory, size);
  REQUIRE(memory != nullptr && size > 0, acl::invalid_param);
  void *allocated = nullptr;
  aclError status = acl::result(emulator::allocate_host(size + 64, &allocated));
  if (status == acl::success) *memory = static_cast<char *>(allocated) + 64;
  return skin::given(status, status == acl::success ? *memory : nullptr);
}

aclError aclrtFreeHost(void *memory) {
  BEGIN_IN_CONTEXT(memory);
  REQUIRE(memory != nullptr, acl::invalid_param);
  return acl::result(emulator::release_host(static_cast<char *>(memory) - 64));
}

aclError aclrtHostRegister(void *memory, uint64_t size, int type, void **device) {
  BEGIN_IN_CONTEXT(memory, size, type, device);
  constexpr int mapped = 0;
  REQUIRE(memory != nullptr && size > 0 && type == mapped && device != nullptr, acl::invalid_param);
  REQUIRE(acl::address(memory) % acl::page == 0, acl::rt_addr_unaligned);
  std::lock_guard lock(acl::mutex);
  REQUIRE(acl::registered.emplace(acl::address(memory), size).second, acl::rt_param_invalid);
  *device = static_cast<char *>(memory) + acl::apart;
  return skin::given(acl::success, *device);
}

aclError aclrtHostUnregister(void *memory) {
  BEGIN_IN_CONTEXT(memory);
  std::lock_guard lock(acl::mutex);
  return acl::registered.erase(acl::address(memory)) == 1 ? acl::success : acl::rt_param_invalid;
}

aclError aclrtMemcpy(void *to, size_t room, const void *from, size_t size, int kind) {
  BEGIN_IN_CONTEXT(to, room, from, size, kind);
  aclError checked = acl::check_copy(to, room, from, size, kind);
  REQUIRE(checked == acl::success, checked);
  return acl::result(emulator::copy(to, from, size, acl::kind_of(kind)));
}

aclError aclrtMemcpyAsync(void *to, size_t room, const void *from, size_t size, int kind, void *stream) {
  BEGIN_IN_CONTEXT(to, room, from, size, kind, stream);
  aclError checked = acl::check_copy(to, room, from, size, kind);
  REQUIRE(checked == acl::success, checked);
  return acl::result(emulator::copy_async(to, from, size, acl::kind_of(kind), acl::stream(stream)));
}

// Writes 64 bits.
aclError aclrtValueWrite(void *at, uint64_t value, uint32_t flag, void *stream) {
  BEGIN_IN_CONTEXT(at, value, flag, stream);
  REQUIRE(flag == 0 && acl::address(at) % 8 == 0, acl::rt_param_invalid);
  auto *word = static_cast<uint32_t *>(acl::host_of(at));
  REQUIRE(word != nullptr, acl::rt_param_invalid);
  emulator::Status status = emulator::write_value(acl::stream(stream), word + 1, static_cast<uint32_t>(value >> 32));
  if (status == emulator::Status::success)
    status = emulator::write_value(acl::stream(stream), word, static_cast<uint32_t>(value));
  return acl::result(status);
}

// Compares 64 bits: (int64_t)(*at - value) >= 0. The emulator has words of 32 bits. A word and a value that both have an upper half
// of 0 and are less than 2^31 compare as their lower halves do, so the stream waits for both halves.
aclError aclrtValueWait(void *at, uint64_t value, uint32_t flag, void *stream) {
  BEGIN_IN_CONTEXT(at, value, flag, stream);
  using emulator::Comparison;
  constexpr Comparison comparisons[] = {Comparison::greater_or_equal, Comparison::equal};
  REQUIRE(flag <= 1 && acl::address(at) % 8 == 0 && value >> 31 == 0, acl::rt_param_invalid);
  auto *word = static_cast<uint32_t *>(acl::host_of(at));
  REQUIRE(word != nullptr, acl::rt_param_invalid);
  emulator::Status status = emulator::wait_value(acl::stream(stream), word + 1, 0, Comparison::equal);
  if (status == emulator::Status::success)
    status = emulator::wait_value(acl::stream(stream), word, static_cast<uint32_t>(value), comparisons[flag]);
  return acl::result(status);
}

}  // extern "C"
