// The checker's rules about accesses, allocations and agents.
#include "../core/checker.hpp"

#include <thread>

#include "check.hpp"
#include "model.hpp"

using namespace emulator_test;

static constexpr Span buffer{0x1000, 0x400};

TEST(unordered_writes_conflict) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.write(buffer, "first");
  b.write(buffer, "second");
  CHECK_REPORTS(checker, 1);
}

TEST(unordered_read_and_write_conflict_in_both_directions) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.read(buffer, "first");
  b.write(buffer, "second");
  CHECK_REPORTS(checker, 1);
  a.read(buffer, "third");
  CHECK_REPORTS(checker, 2);
}

TEST(reads_do_not_conflict) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.read(buffer, "first");
  b.read(buffer, "second");
  a.read(buffer, "third");
  CHECK_REPORTS(checker, 0);
}

TEST(an_agent_is_ordered_in_itself) {
  Checker checker;
  Actor a(checker, "stream 1");
  a.write(buffer, "first");
  a.read(buffer, "second");
  a.write(buffer, "third");
  checker.access(a.agent, a.step(), "in place", {buffer, buffer}, {buffer, {buffer.address + 8, 8}});
  CHECK_REPORTS(checker, 0);
}

TEST(an_event_orders_what_came_before_its_record) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.write(buffer, "before");
  const Clock event = a.now();
  b.after(event);
  b.read(buffer, "reader");
  CHECK_REPORTS(checker, 0);
}

TEST(an_event_does_not_order_what_came_after_its_record) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.write(buffer, "before");
  const Clock event = a.now();
  a.write(buffer, "after");
  b.after(event);
  b.read(buffer, "reader");
  CHECK_REPORTS(checker, 1);
  CHECK(checker.reports()[0].earlier.what == "after");
}

TEST(a_wait_orders_only_what_comes_after_it) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  b.write(buffer, "too early");
  a.write(buffer, "producer");
  b.after(a.now());
  CHECK_REPORTS(checker, 1);
  b.write(buffer, "in time");
  CHECK_REPORTS(checker, 1);
}

TEST(order_is_transitive) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2"), c(checker, "stream 3");
  a.write(buffer, "first");
  b.after(a.now());
  c.after(b.now());
  c.write(buffer, "second");
  CHECK_REPORTS(checker, 0);
}

TEST(a_write_conflicts_with_every_unordered_reader) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2"), c(checker, "stream 3");
  a.read(buffer, "reader 1");
  b.read(buffer, "reader 2");
  c.after(b.now());
  c.write(buffer, "writer");
  CHECK_REPORTS(checker, 1);
  CHECK(checker.reports()[0].earlier.what == "reader 1");
}

TEST(a_conflict_is_not_hidden_by_another_one) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2"), c(checker, "stream 3");
  a.write(buffer, "first");
  b.write(buffer, "second");
  c.after(b.now());
  c.read(buffer, "third");  // ordered after one of them only
  CHECK_REPORTS(checker, 2);
  CHECK(checker.reports()[1].earlier.what == "first");
}

TEST(neighbours_do_not_conflict) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.write({0x1000, 0x10}, "left");
  b.write({0x1010, 0x10}, "right");
  b.write({0xff0, 0x10}, "far left");
  b.write({0x1008, 0}, "nothing");
  CHECK_REPORTS(checker, 0);
  b.write({0x100f, 1}, "the last byte");
  CHECK_REPORTS(checker, 1);
}

TEST(ranges_may_reach_the_end_of_the_addresses) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.write({UINTPTR_MAX - 8, 100}, "high");
  b.read({UINTPTR_MAX - 4, 2}, "reader");
  CHECK_REPORTS(checker, 1);
}

TEST(a_report_names_accesses_place_and_missing_order) {
  Checker checker;
  Actor a(checker, "stream 1 of device 0"), b(checker, "thread 7");
  checker.allocate(buffer, "staging buffer");
  a.write({0x1100, 0x80}, "copy out");
  b.read({0x1140, 0x80}, "sum of elements");
  CHECK_REPORTS(checker, 1);
  CHECK(checker.text() ==
        "conflict: thread 7 reads in [sum of elements], stream 1 of device 0 writes in [copy out], without an order: "
        "64 bytes at offset 320 of staging buffer (1024 bytes): thread 7 does not wait for stream 1 of device 0 after "
        "[copy out]\n");
}

TEST(equal_reports_are_merged) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  for (int i = 0; i < 50; i++) {
    a.write({0x1000 + 0x100u * i, 0x100}, "producer");
    b.read({0x1000 + 0x100u * i, 0x100}, "consumer");
  }
  CHECK_REPORTS(checker, 1);
  CHECK(contains(checker.text(), "(50 times)"));
}

TEST(a_report_counts_accesses_and_covers_all_their_bytes) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2"), c(checker, "stream 3");
  a.write({0x1000, 0x100}, "producer");
  c.read({0x1040, 0x40}, "splits the range");
  checker.reset();
  a.write({0x1000, 0x100}, "producer");
  c.after(a.now());
  c.read({0x1040, 0x40}, "splits the range");
  b.read({0x1000, 0x100}, "consumer");
  CHECK_REPORTS(checker, 1);
  CHECK(checker.reports()[0].times == 1);
  CHECK(checker.reports()[0].where.address == 0x1000 && checker.reports()[0].where.length == 0x100);
}

TEST(reports_are_bounded) {
  Checker checker(10);
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  for (int i = 0; i < 25; i++) {
    a.write({0x1000 + 0x100u * i, 0x100}, "producer " + std::to_string(i));
    b.read({0x1000 + 0x100u * i, 0x100}, "consumer");
  }
  CHECK_REPORTS(checker, 25);
  CHECK(checker.reports().size() == 10);
  CHECK(contains(checker.text(), "15 more conflicts"));
}

TEST(reset_forgets_reports_and_accesses) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.write(buffer, "first");
  b.write(buffer, "second");
  checker.reset();
  CHECK_REPORTS(checker, 0);
  CHECK(checker.text().empty());
  a.write(buffer, "third");
  CHECK_REPORTS(checker, 0);
  b.write(buffer, "second");
  CHECK_REPORTS(checker, 1);
}

TEST(reuse_without_a_wait_is_reported) {
  Checker checker;
  Actor host(checker, "thread 1");
  Actor compute(checker, "stream 1", Kind::stream), side(checker, "stream 2", Kind::stream);
  checker.allocate(buffer, "gradient");
  side.read(buffer, "all_reduce");
  checker.allocate(buffer, "activation");
  compute.write(buffer, "forward");
  CHECK_REPORTS(checker, 1);
  CHECK(contains(checker.text(), "the memory was reused: [all_reduce] belongs to gradient"));
  CHECK(contains(checker.text(), "activation (1024 bytes)"));
}

TEST(reuse_after_a_wait_is_not_reported) {
  Checker checker;
  Actor compute(checker, "stream 1"), side(checker, "stream 2");
  checker.allocate(buffer, "gradient");
  side.read(buffer, "all_reduce");
  checker.allocate(buffer, "activation");
  compute.after(side.now());
  compute.write(buffer, "forward");
  CHECK_REPORTS(checker, 0);
}

TEST(an_allocation_by_an_agent_comes_after_earlier_accesses) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  b.write(buffer, "old work");
  checker.allocate(buffer, "block", a.agent);
  CHECK_REPORTS(checker, 1);
  CHECK(contains(checker.text(), "stream 1 writes in [allocation of block], stream 2 writes in [old work]"));
  a.write(buffer, "new work");
  CHECK_REPORTS(checker, 1);  // reported once

  b.after(a.now());
  checker.allocate(buffer, "next block", b.agent);
  b.write(buffer, "newer work");
  CHECK_REPORTS(checker, 1);
}

TEST(a_release_by_an_agent_comes_after_all_accesses) {
  Checker checker;
  Actor host(checker, "thread 1"), a(checker, "stream 1");
  checker.allocate(buffer, "block");
  a.read({0x1100, 0x100}, "late reader");
  checker.release(buffer, host.agent);
  CHECK_REPORTS(checker, 1);
  CHECK(contains(checker.text(), "[release of block], stream 1 reads in [late reader]"));
  CHECK(contains(checker.text(), "256 bytes at offset 256 of block"));

  checker.allocate(buffer, "block 2");
  a.read(buffer, "reader");
  host.after(a.now());
  checker.release(buffer, host.agent);
  CHECK_REPORTS(checker, 1);
  CHECK(checker.usage().cells == 0);
}

TEST(a_part_of_an_allocation_may_have_another_name) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  checker.allocate({0x1000, 0x300}, "segment");
  checker.allocate({0x1100, 0x100}, "block");
  for (uintptr_t address : {0x1080, 0x1180, 0x1280}) {
    a.write({address, 1}, "a " + std::to_string(address));
    b.write({address, 1}, "b");
  }
  CHECK(contains(checker.text(), "offset 128 of segment"));
  CHECK(contains(checker.text(), "offset 128 of block"));
  CHECK(contains(checker.text(), "offset 640 of segment"));
  checker.reset();
  checker.release({0x1000, 0x300});
  a.write({0x1280, 1}, "a");
  b.write({0x1280, 1}, "b");
  CHECK(contains(checker.text(), "1 bytes at 0x1280"));
}

TEST(a_new_thread_comes_after_what_all_threads_know) {
  Checker checker;
  Actor main(checker, "thread 1");
  main.write(buffer, "before");
  Actor second(checker, "thread 2");
  second.write(buffer, "by the second");
  CHECK_REPORTS(checker, 0);
  Actor third(checker, "thread 3");  // thread 1 knows nothing of what thread 2 did
  third.write(buffer, "by the third");
  CHECK_REPORTS(checker, 1);
  CHECK(checker.reports()[0].earlier.what == "by the second");
}

TEST(an_access_that_is_recorded_late_keeps_its_place) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2"), c(checker, "stream 3");
  const Clock host_function = a.step();
  a.write(buffer, "behind it");
  b.after(a.now());
  b.write(buffer, "behind it on another stream");
  checker.access(a.agent, host_function, "in the host function", {buffer}, {});
  CHECK_REPORTS(checker, 0);
  c.write({buffer.address, 1}, "beside it");
  checker.reset();
  c.write(buffer, "beside it");
  checker.access(a.agent, host_function, "in the host function", {buffer}, {});
  CHECK_REPORTS(checker, 1);
}

TEST(many_threads_may_call) {
  Checker checker;
  Actor main(checker, "thread 0");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&checker, t] {
      Actor self(checker, "thread " + std::to_string(t + 1));
      const Span own{0x10000u * static_cast<unsigned>(t + 1), 0x1000};
      for (unsigned i = 0; i < 300; i++) {
        self.write({own.address + i % 64 * 16, 32}, "own");
        self.publish(own.address, i);
        self.checker.observe(0x10000u * (i % 4 + 1), i, self.agent);
        self.checker.release_key(i % 8, self.now());
        self.checker.acquire_key((i + 1) % 8, self.agent);
        if (i % 50 == 0) self.checker.prune();
      }
      checker.retire(self.agent);
    });
  }
  for (auto &thread : threads) thread.join();
  CHECK_REPORTS(checker, 0);
}
