// Random histories: what the checker reports is what the reference finds. EMULATOR_SEED gives the first seed,
// EMULATOR_ROUNDS the number of seeds.
#include <algorithm>
#include <random>

#include "check.hpp"
#include "model.hpp"
#include "reference.hpp"

using namespace emulator_test;

static constexpr uintptr_t memory = 0x1000, flags = 0x9000;

// History makes the same calls of the checker and of the reference.
class History {
 public:
  History(uint64_t seed, bool late, bool with_waits)
      : seed_(seed), random_(seed), late_(late), with_waits_(with_waits), checker_(1 << 20) {
    single_bytes_ = pick(2);
    short_lives_ = pick(2);
    add(true);
    for (uint64_t i = pick(3); i-- > 0;) add(true);
    for (uint64_t i = 1 + pick(4); i-- > 0;) add(false);
  }

  void run() {
    for (int i = 0; i < 250; i++) act();
    while (!deferred_.empty()) record_deferred();
    std::shuffle(waits_.begin(), waits_.end(), random_);
    for (size_t i = 0; i < waits_.size(); i++) settle(i);
    compare();
  }

 private:
  struct Member {
    Agent agent;
    size_t reference;
    bool thread;
  };
  struct Point {
    Clock clock;
    Knowledge knowledge;
    size_t number;
  };
  struct Deferred {
    Member member;
    Point point;
    size_t operation;
  };

  uint64_t pick(uint64_t below) { return random_() % below; }

  void add(bool thread) {
    const Agent agent = checker_.add(thread ? "thread" : "stream", thread ? Kind::thread : Kind::stream);
    members_.push_back({agent, reference_.add(thread), thread});
  }

  Member &any() { return members_[pick(members_.size())]; }
  Member &any_thread() {
    for (;;)
      if (Member &member = any(); member.thread) return member;
  }

  // A stream's step comes after a step of the thread that enqueues.
  Point step(const Member &member) {
    if (!member.thread) {
      const Member &thread = any_thread();
      order(member, now(thread));
    }
    Point point;
    point.clock = checker_.step(member.agent);
    point.knowledge = reference_.step(member.reference, &point.number);
    return point;
  }
  Point now(const Member &member) { return {checker_.now(member.agent), reference_.now(member.reference), 0}; }
  void order(const Member &later, const Point &earlier) {
    checker_.order(later.agent, earlier.clock);
    reference_.order(later.reference, earlier.knowledge);
  }

  Bytes range() {
    const uint64_t begin = pick(32), length = single_bytes_ ? 1 : 1 + pick(std::min<uint64_t>(12, 32 - begin));
    return static_cast<Bytes>(((uint64_t{1} << length) - 1) << begin);
  }
  static std::vector<Span> spans(Bytes bytes) {
    std::vector<Span> list;
    for (unsigned i = 0; i < 32; i++) {
      if (!(bytes >> i & 1)) continue;
      if (i > 0 && (bytes >> (i - 1) & 1))
        list.back().length++;
      else
        list.push_back({memory + i, 1});
    }
    return list;
  }

  void operate(const Member &member) {
    const Point point = step(member);
    const size_t operation = operations_++;
    if (late_ && pick(4) == 0)
      deferred_.push_back({member, point, operation});
    else
      record(member, point, operation);
  }
  void record(const Member &member, const Point &point, size_t operation) {
    Bytes reads = 0, writes = 0;
    if (pick(2)) reads |= range();
    if (pick(3) == 0) reads |= range();
    if (reads == 0 || pick(3) == 0) writes |= range();
    checker_.access(member.agent, point.clock, std::to_string(operation), spans(reads), spans(writes));
    reference_.access(operation, point.number, point.knowledge, reads, writes);
  }
  void record_deferred() {
    const size_t i = pick(deferred_.size());
    const Deferred chosen = deferred_[i];
    deferred_.erase(deferred_.begin() + static_cast<ptrdiff_t>(i));
    record(chosen.member, chosen.point, chosen.operation);
  }

  void publish() {
    const Member &member = any();
    const Point point = step(member);
    const uint64_t flag = pick(3);
    const uint32_t value = static_cast<uint32_t>(pick(5));
    checker_.publish(flags + 64 * flag, value, member.agent, point.clock);
    reference_.publish(flag, value, point.number, point.knowledge);
  }
  void await() {
    const Member &member = any();
    step(member);
    const uint64_t flag = pick(3);
    const uint32_t value = static_cast<uint32_t>(pick(5));
    const bool equal = pick(2);
    const auto condition = [=](uint32_t v) { return equal ? v == value : v >= value; };
    const auto wait = checker_.await(flags + 64 * flag, condition, member.agent);
    waits_.push_back({wait, reference_.await(flag, condition, member.reference)});
  }
  void observe() {
    const Member &member = any();
    const uint64_t flag = pick(3);
    const uint32_t value = static_cast<uint32_t>(pick(5));
    checker_.observe(flags + 64 * flag, value, member.agent);
    reference_.observe(flag, value, member.reference);
  }
  void settle(size_t i) {
    checker_.settle(waits_[i].first);
    reference_.settle(waits_[i].second);
  }
  void use_key() {
    const Member &member = any();
    const uint64_t key = pick(3);
    if (pick(2)) {
      const Point point = now(member);
      checker_.release_key(flags + 64 * key, point.clock);
      reference_.release_key(key, point.knowledge);
    } else {
      checker_.acquire_key(flags + 64 * key, member.agent);
      reference_.acquire_key(key, member.reference);
    }
  }

  void release_memory() {
    const Member &member = any();
    const Point point = step(member);
    const size_t operation = operations_++;
    const Span span = spans(range())[0];
    const Bytes bytes = static_cast<Bytes>(((uint64_t{1} << span.length) - 1) << (span.address - memory));
    checker_.allocate(span, std::to_string(operation));  // its name, in the report of the release
    checker_.release(span, member.agent);
    std::set<size_t> users;
    reference_.release(bytes, member.reference, &users);
    if (!users.empty()) releases_[operation] = users;
  }

  void retire() {
    const size_t i = pick(members_.size());
    const auto threads = std::count_if(members_.begin(), members_.end(), [](const Member &m) { return m.thread; });
    if (members_[i].thread && threads == 1) return;
    const Agent agent = members_[i].agent;
    const bool busy =
        std::any_of(deferred_.begin(), deferred_.end(), [&](const Deferred &d) { return d.member.agent == agent; });
    if (busy) return;
    checker_.retire(agent);
    reference_.retire(members_[i].reference);
    members_.erase(members_.begin() + static_cast<ptrdiff_t>(i));
  }

  void act() {
    const uint64_t choice = pick(100);
    if (choice < 25) return operate(any());
    if (choice < 40) return events_.push_back(now(any()));
    if (choice < 65) {
      if (!events_.empty()) order(any(), events_[events_.size() - 1 - pick(std::min<size_t>(events_.size(), 6))]);
      return;
    }
    if (choice < 68) return use_key();
    if (choice < 71) return release_memory();
    if (choice < 74) return checker_.prune();
    if (choice < 80) {
      if (members_.size() < 4 || pick(4) == 0) add(pick(3) == 0);
      return;
    }
    if (choice < (short_lives_ ? 86 : 81)) {
      retire();
      return add(pick(4) == 0);
    }
    if (choice < 88) {
      if (!deferred_.empty()) record_deferred();
      return;
    }
    if (!with_waits_) return;
    if (choice < 92) return publish();
    if (choice < 96) return await();
    if (choice < 98) return observe();
    if (!waits_.empty()) settle(pick(waits_.size()));
  }

  void fail(const std::string &text) {
    fprintf(stderr, "seed %llu%s%s: %s\n%s", static_cast<unsigned long long>(seed_), late_ ? ", late" : "",
            with_waits_ ? ", with waits" : "", text.c_str(), checker_.text().c_str());
    exit(1);
  }

  // Every report is a conflict, and every operation that has a conflict with an earlier one is reported.
  void compare() {
    const auto conflicts = reference_.conflicts();
    std::set<size_t> reported, expected;
    for (const auto &report : checker_.reports()) {
      const size_t earlier = std::stoul(report.earlier.what);
      const std::string release = "release of ";
      if (report.later.what.starts_with(release)) {
        const size_t later = std::stoul(report.later.what.substr(release.size()));
        if (!releases_.count(later) || !releases_.at(later).count(earlier))
          fail("no conflict with a release: " + report.text());
        reported.insert(later);
        continue;
      }
      const size_t later = std::stoul(report.later.what);
      const auto conflict = conflicts.find({earlier, later});
      if (conflict == conflicts.end()) fail("no conflict: " + report.text());
      for (uintptr_t i = 0; i < report.where.length; i++)
        if (!(conflict->second >> (report.where.address - memory + i) & 1)) fail("other bytes: " + report.text());
      reported.insert(later);
    }
    if (late_) return;
    for (const auto &[pair, bytes] : conflicts) expected.insert(pair.second);
    for (const auto &[operation, users] : releases_) expected.insert(operation);
    for (const size_t operation : expected)
      if (!reported.count(operation)) fail("operation " + std::to_string(operation) + " is not reported");
    operations_found += operations_;
    conflicts_found += expected.size();
  }

 public:
  static inline size_t operations_found = 0, conflicts_found = 0;

 private:
  uint64_t seed_;
  std::mt19937_64 random_;
  bool late_, with_waits_, single_bytes_, short_lives_;
  Checker checker_;
  Reference reference_;
  std::vector<Member> members_;
  std::vector<Point> events_;
  std::vector<Deferred> deferred_;
  std::vector<std::pair<std::shared_ptr<emulator::Wait>, size_t>> waits_;
  std::map<size_t, std::set<size_t>> releases_;
  size_t operations_ = 0;
};

static void run_histories(bool late, bool with_waits) {
  const char *first = getenv("EMULATOR_SEED"), *rounds = getenv("EMULATOR_ROUNDS");
  const uint64_t begin = first ? strtoull(first, nullptr, 10) : 1, count = rounds ? strtoull(rounds, nullptr, 10) : 300;
  History::operations_found = History::conflicts_found = 0;
  for (uint64_t seed = begin; seed < begin + count; seed++) History(seed, late, with_waits).run();
  printf("  seeds %llu to %llu: %zu of %zu operations have a conflict\n", static_cast<unsigned long long>(begin),
         static_cast<unsigned long long>(begin + count - 1), History::conflicts_found, History::operations_found);
  if (late || count < 100) return;  // few histories, or not counted
  CHECK(History::conflicts_found > History::operations_found / 20);
  CHECK(History::conflicts_found < History::operations_found * 19 / 20);
}

TEST(random_histories) { run_histories(false, false); }
TEST(random_histories_with_flags) { run_histories(false, true); }
TEST(random_histories_with_late_accesses) { run_histories(true, true); }
