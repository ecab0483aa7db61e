// What the checker keeps is bounded by the memory in use and the agents that live, not by the number of accesses.
#include "../core/checker.hpp"
#include "check.hpp"
#include "model.hpp"

using namespace emulator_test;

static constexpr uintptr_t base = 0x100000;
static constexpr size_t block = 512;

// A thread and two streams: each round writes activations, reads them in the other direction, reduces gradients on the
// second stream, and updates parameters.
static size_t cells_after(int rounds, bool synchronize) {
  Checker checker;
  Actor host(checker, "thread 1");
  Actor compute(checker, "stream 1", Kind::stream), side(checker, "stream 2", Kind::stream);
  constexpr uintptr_t layers = 40, activations = base, gradients = base + layers * block,
                      parameters = base + 2 * layers * block;
  for (int round = 0; round < rounds; round++) {
    for (uintptr_t i = 0; i < layers; i++) {
      compute.after(host.step());
      checker.access(compute.agent, compute.step(), "forward", {{parameters + i * block, block}},
                     {{activations + i * block, block}});
    }
    for (uintptr_t i = layers; i-- > 0;) {
      compute.after(host.step());
      checker.access(compute.agent, compute.step(), "backward", {{activations + i * block, block}},
                     {{gradients + i * block, block}});
    }
    side.after(host.step());
    side.after(compute.now());
    side.write({gradients, layers * block}, "all_reduce");
    compute.after(host.step());
    compute.after(side.now());
    for (uintptr_t i = 0; i < layers; i++)
      checker.access(compute.agent, compute.step(), "step", {{gradients + i * block, block / 2}},
                     {{parameters + i * block, block}});
    if (synchronize) host.after(compute.now());
  }
  CHECK_REPORTS(checker, 0);
  if (synchronize) {
    checker.prune();
    CHECK(checker.usage().cells == 0);
  }
  return checker.usage().cells;
}

TEST(a_training_loop_keeps_no_more_with_every_round) {
  const size_t few = cells_after(3, false);
  CHECK(few > 0 && few <= 4 * 40);
  CHECK(cells_after(300, false) == few);
  cells_after(300, true);
}

TEST(accesses_that_all_threads_know_are_dropped) {
  Checker checker;
  Actor host(checker, "thread 1");
  Actor stream(checker, "stream 1", Kind::stream);
  size_t most = 0;
  for (uintptr_t i = 0; i < 50000; i++) {  // ever new memory
    stream.after(host.step());
    stream.write({base + 2 * i * block, block}, "kernel");
    host.after(stream.now());
    most = std::max(most, checker.usage().cells);
  }
  CHECK(most < 3000);
}

TEST(accesses_that_a_thread_does_not_know_are_kept) {
  Checker checker;
  Actor host(checker, "thread 1");
  Actor other(checker, "thread 2");
  Actor stream(checker, "stream 1", Kind::stream);
  stream.after(host.step());
  stream.write({base, block}, "kernel");
  host.after(stream.now());
  checker.prune();
  CHECK(checker.usage().cells == 1);
  other.read({base, block}, "reader");
  CHECK_REPORTS(checker, 1);

  other.after(host.now());
  checker.prune();
  CHECK(checker.usage().cells == 1);  // what the other thread read; the first one does not know that
  host.after(other.now());
  checker.prune();
  CHECK(checker.usage().cells == 0);
}

TEST(a_stream_that_does_nothing_keeps_nothing) {
  Checker checker;
  Actor host(checker, "thread 1");
  Actor idle(checker, "stream 1", Kind::stream), stream(checker, "stream 2", Kind::stream);
  stream.after(host.step());
  stream.write({base, block}, "kernel");
  host.after(stream.now());
  checker.prune();
  CHECK(checker.usage().cells == 0);
  idle.after(host.step());
  idle.write({base, block}, "next kernel");
  CHECK_REPORTS(checker, 0);
}

TEST(numbers_of_retired_agents_are_used_again) {
  Checker checker;
  Actor host(checker, "thread 1");
  for (int i = 0; i < 5000; i++) {
    Actor stream(checker, "stream", Kind::stream);
    stream.after(host.step());
    stream.write({base, block}, "kernel");
    host.after(stream.now());
    checker.retire(stream.agent);
  }
  CHECK_REPORTS(checker, 0);
  CHECK(checker.usage().agents < 40);
}

TEST(a_retired_agent_that_did_something_unordered_is_not_mistaken_for_its_successor) {
  Checker checker;
  Actor host(checker, "thread 1");
  std::vector<Clock> clocks;
  for (uintptr_t i = 0; i < 200; i++) {
    Actor stream(checker, "stream " + std::to_string(i), Kind::stream);
    stream.after(host.step());
    stream.write({base + i * block, block}, "kernel");
    clocks.push_back(stream.now());
    checker.retire(stream.agent);
  }
  Actor late(checker, "stream 200", Kind::stream);
  late.after(host.step());
  late.after(clocks[7]);
  late.read({base, 200 * block}, "reader");
  CHECK_REPORTS(checker, 199);
  CHECK(contains(checker.text(), "stream 6 writes in [kernel]"));
  CHECK(!contains(checker.text(), "stream 7 writes in [kernel]"));
}

TEST(threads_that_come_and_go_leave_little) {
  Checker checker;
  Actor main(checker, "thread 1");
  for (int i = 0; i < 3000; i++) {
    Actor thread(checker, "thread", Kind::thread);
    thread.read({base, block}, "reader");
    thread.step();
    checker.release_key(base + static_cast<uintptr_t>(i), thread.now());
    checker.retire(thread.agent);
    if (i % 2) checker.acquire_key(base + static_cast<uintptr_t>(i), main.agent);
  }
  CHECK(checker.usage().agents < 300);
}

TEST(conflicts_that_nobody_decides_are_bounded) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  stream.await(0x900000, 1);
  for (uintptr_t i = 0; i < 20000; i++) {
    stream.read({base + i * block, block}, "behind the wait");
    host.write({base + i * block, block}, "beside it");
  }
  CHECK(checker.usage().undecided <= 8192);
  host.publish(0x900000, 1);
  CHECK(checker.usage().undecided == 0);
}

TEST(what_waits_long_for_one_flag_is_bounded_by_memory) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  stream.await(0x900000, 1);
  for (int i = 0; i < 20000; i++)
    stream.write({base + static_cast<uintptr_t>(i % 8) * block, block}, "behind the wait");
  CHECK(checker.usage().cells <= 8);
  CHECK_REPORTS(checker, 0);
}

TEST(chains_of_waits_are_forgotten) {
  Checker checker;
  Actor host(checker, "thread 1");
  Actor stream(checker, "stream 1", Kind::stream), side(checker, "stream 2", Kind::stream);
  const uintptr_t input = 0x900000, output = 0x900040;
  for (uint32_t i = 1; i <= 5000; i++) {  // as a collective that the CPU carries out: copy out, sum, copy back
    side.after(host.step());
    side.after(stream.now());
    side.write({base, block}, "copy out");
    side.publish(input, i);
    side.after(host.step());
    auto wait = side.await(output, i);
    side.read({base, block}, "copy back");
    stream.after(side.now());
    checker.observe(input, i, host.agent);
    host.write({base, block}, "sum");
    host.publish(output, i);
    checker.settle(wait);
  }
  CHECK_REPORTS(checker, 0);
  CHECK(checker.usage().cells == 1 && checker.usage().flags == 2 && checker.usage().undecided == 0);
  CHECK(stream.now().waits().empty());
}
