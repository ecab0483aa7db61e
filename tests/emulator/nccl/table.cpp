#include "table.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <random>

namespace fake_nccl {
namespace {

constexpr uint64_t page = 4096;

int open_of(pid_t process, int descriptor) {
  std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

void *map(int descriptor, size_t size) {
  void *at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  return at == MAP_FAILED ? nullptr : at;
}

// The descriptors of the tables that this process has made, by nonce.
struct Kept {
  std::mutex mutex;
  std::map<uint64_t, int> descriptors;
};

Kept &kept() {
  static auto *all = new Kept;  // threads may use it until the process is gone
  return *all;
}

}  // namespace

bool make_table(Address *address) {
  int descriptor = memfd_create("fake-nccl", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, sizeof(Table)) != 0) return false;
  auto *table = static_cast<Table *>(map(descriptor, sizeof(Table)));
  if (table == nullptr) return false;
  std::random_device random;
  table->nonce = uint64_t{random()} << 32 | random();
  *address = {magic, table->nonce, getpid(), descriptor};
  close_table(table);
  std::lock_guard lock(kept().mutex);
  kept().descriptors[address->nonce] = descriptor;
  return true;
}

void close_table(Table *table) { munmap(table, sizeof(Table)); }

void forget_table(uint64_t nonce) {
  std::lock_guard lock(kept().mutex);
  auto found = kept().descriptors.find(nonce);
  if (found == kept().descriptors.end()) return;
  close(found->second);
  kept().descriptors.erase(found);
}

Table *open_table(const Address &address) {
  if (address.magic != magic) return nullptr;
  int descriptor = open_of(address.process, address.descriptor);
  if (descriptor < 0) return nullptr;
  auto *table = static_cast<Table *>(map(descriptor, sizeof(Table)));
  close(descriptor);
  if (table == nullptr || table->nonce == address.nonce) return table;
  close_table(table);
  return nullptr;
}

std::unique_ptr<Data> Data::make() {
  int descriptor = memfd_create("fake-nccl-data", MFD_CLOEXEC);
  if (descriptor < 0 || ftruncate(descriptor, size) != 0) return nullptr;
  auto *base = static_cast<char *>(map(descriptor, size));
  return std::unique_ptr<Data>(base == nullptr ? nullptr : new Data(descriptor, base));
}

std::unique_ptr<Data> Data::open(pid_t process, int descriptor) {
  int own = open_of(process, descriptor);
  if (own < 0) return nullptr;
  auto *base = static_cast<char *>(map(own, size));
  return std::unique_ptr<Data>(base == nullptr ? nullptr : new Data(own, base));
}

Data::~Data() {
  munmap(base_, size);
  close(descriptor_);
}

uint64_t Data::place(uint64_t bytes) {
  uint64_t length = (bytes + page - 1) / page * page;
  if (next_ + length > size) next_ = 0;
  uint64_t at = next_;
  next_ += length;
  return at;
}

void Data::give_back(uint64_t offset, uint64_t bytes) const {
  if (bytes == 0) return;
  uint64_t length = (bytes + page - 1) / page * page;
  (void)!fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                   static_cast<off_t>(length));
}

}  // namespace fake_nccl
