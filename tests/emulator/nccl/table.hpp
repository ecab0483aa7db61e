// table.hpp is the memory in which the ranks of one communicator meet, all of them processes of this machine. It is a memfd of
// the process that made the unique id, which the others open through /proc. Each rank has a second memfd for its data, so
// nothing of this outlives the processes.
//
// A rank writes its own entries only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fake_nccl {

constexpr int most_ranks = 16;
constexpr uint64_t window = 64;  // operations of a rank, and sends of a pair, that may be under way

// Operations that are called, and those that graphs launch, are numbered apart: each kind when it gets its place, in the
// call or in the launch.
enum Lane { called, launched, lanes };

// What an operation of all ranks is. NCCL does not compare these; here an operation whose ranks differ never ends.
struct Signature {
  int32_t kind, type, reduction, root;
  uint64_t count;
  bool operator==(const Signature &) const = default;
};

struct Entry {
  std::atomic<uint64_t> number;  // of the operation that the rest is of
  Signature what;
  uint64_t offset, bytes;  // in the data of the rank
};

struct Pair {
  std::atomic<uint64_t> sent, taken;
  struct {
    uint64_t offset, bytes;
  } entry[window];
};

enum class Presence : int32_t { absent, joined, failed, left };

struct Member {
  std::atomic<Presence> presence;
  int32_t ranks;
  pid_t process;
  int32_t data;                 // descriptor
  char device[96];              // the host and the device, to find two ranks with one device
  std::atomic<int32_t> broken;  // the result that ranks of other hosts get: their connections with this one are gone
  std::atomic<uint32_t> told;   // ranks whose user has got such a result for this one
  // What the rank has called for the first time, and so connects for: kinds of operations of all ranks, and peers. The
  // first call of a kind is queued when all ranks have made it.
  std::atomic<uint32_t> kinds, sends, recvs;
  std::atomic<uint64_t> done[lanes];
  Entry entry[lanes][window];
};

struct Table {
  uint64_t nonce;
  Member member[most_ranks];
  Pair pair[lanes][most_ranks][most_ranks];  // from, to
};

// What a unique id holds.
struct Address {
  uint64_t magic;
  uint64_t nonce;
  pid_t process;
  int32_t descriptor;
};
constexpr uint64_t magic = 0x73616765636f6d6d;

// Makes a table. The process keeps it until forget_table().
bool make_table(Address *address);
// Maps the table that another process, or this one, has made; null if it is gone.
Table *open_table(const Address &address);
void close_table(Table *table);
// Gives back what this process keeps of a table that it has made, so that no further rank can open it.
void forget_table(uint64_t nonce);

// The data of a rank: a long sparse file, written from front to back again and again.
class Data {
 public:
  static constexpr size_t size = size_t{8} << 30;
  static std::unique_ptr<Data> make();
  static std::unique_ptr<Data> open(pid_t process, int descriptor);
  ~Data();
  // Gives the place for that many bytes. The owner gives the memory of places back when their readers are done.
  uint64_t place(uint64_t bytes);
  void give_back(uint64_t offset, uint64_t bytes) const;
  char *at(uint64_t offset) const { return base_ + offset; }
  int descriptor() const { return descriptor_; }

 private:
  Data(int descriptor, char *base) : descriptor_(descriptor), base_(base) {}
  int descriptor_;
  char *base_;
  uint64_t next_ = 0;
};

}  // namespace fake_nccl
