// The checker's rules about flag words, waits for values, and keys of host threads.
#include "../core/checker.hpp"
#include "check.hpp"
#include "model.hpp"

using namespace emulator_test;

static constexpr Span buffer{0x1000, 0x400};
static constexpr uintptr_t flag = 0x9000;

TEST(a_wait_for_a_value_comes_after_its_writer) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.write(buffer, "producer");
  a.publish(flag, 1);
  b.await(flag, 1);
  b.read(buffer, "consumer");
  CHECK_REPORTS(checker, 0);
}

TEST(a_wait_for_a_value_does_not_order_what_follows_the_writer) {
  Checker checker;
  Actor a(checker, "stream 1"), b(checker, "stream 2");
  a.publish(flag, 1);
  a.write(buffer, "after the flag");
  b.await(flag, 1);
  b.read(buffer, "consumer");
  CHECK_REPORTS(checker, 1);
}

TEST(a_wait_may_be_queued_before_its_value_is_written) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  stream.await(flag, 1);
  stream.read(buffer, "copy back");
  host.write(buffer, "sum");
  CHECK_REPORTS(checker, 0);  // not yet known
  CHECK(checker.usage().undecided == 1);
  host.publish(flag, 1);
  CHECK_REPORTS(checker, 0);
  CHECK(checker.usage().undecided == 0);
}

TEST(what_the_writer_does_after_the_value_conflicts_with_what_is_behind_the_wait) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  stream.await(flag, 1);
  stream.read(buffer, "copy back");
  host.publish(flag, 1);
  host.write(buffer, "too late");
  CHECK_REPORTS(checker, 1);
}

TEST(a_value_published_too_early_is_reported_when_it_is_known) {
  Checker checker;
  Actor host(checker, "thread 1"), other(checker, "thread 2"), stream(checker, "stream 1");
  stream.await(flag, 1);
  stream.read(buffer, "copy back");
  host.write(buffer, "sum");
  CHECK_REPORTS(checker, 0);
  other.publish(flag, 1);  // the wrong thread: it does not come after the sum
  CHECK_REPORTS(checker, 1);
  CHECK(checker.reports()[0].later.what == "sum" && checker.reports()[0].earlier.what == "copy back");
}

TEST(what_precedes_a_wait_is_not_ordered_by_it) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  stream.read(buffer, "copy out of the last round");
  stream.await(flag, 1);
  stream.write(buffer, "copy of this round");
  host.write(buffer, "sum");  // does not wait for the copy of the last round
  host.publish(flag, 1);
  CHECK_REPORTS(checker, 1);
  CHECK(checker.reports()[0].earlier.what == "copy out of the last round");
}

TEST(a_value_that_does_not_satisfy_orders_nothing) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  stream.await(flag, 2);
  stream.read(buffer, "copy back");
  host.write(buffer, "sum");
  host.publish(flag, 1);
  CHECK(checker.usage().undecided == 1);
  host.write({buffer.address, 4}, "more");
  host.publish(flag, 2);
  CHECK_REPORTS(checker, 0);
  CHECK(checker.usage().undecided == 0);
}

TEST(a_wait_comes_after_the_earliest_value_that_satisfies_it) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  host.publish(flag, 1);
  host.write(buffer, "between");
  host.publish(flag, 2);
  stream.await(flag, 1);
  stream.read(buffer, "copy back");
  CHECK_REPORTS(checker, 1);
  stream.await(flag, 2);
  stream.read(buffer, "second copy back");
  CHECK_REPORTS(checker, 1);
}

TEST(a_stale_value_satisfies_a_wait) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  host.publish(flag, 1);  // of an operation before this one: nobody zeroed the flag
  host.write(buffer, "sum");
  host.publish(flag, 1);
  stream.await(flag, 1);
  stream.read(buffer, "copy back");
  CHECK_REPORTS(checker, 1);
}

TEST(an_overwritten_value_does_not_satisfy_a_wait) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  host.publish(flag, 1);
  host.publish(flag, 0);
  stream.after(host.now());
  host.write(buffer, "sum");
  stream.await(flag, 1);
  stream.read(buffer, "copy back");
  host.publish(flag, 1);
  CHECK_REPORTS(checker, 0);
}

TEST(an_overwriting_that_the_waiter_does_not_know_does_not_count) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  host.publish(flag, 1);
  host.publish(flag, 0);
  host.write(buffer, "sum");
  host.publish(flag, 1);
  stream.await(flag, 1);  // may run before the zero is written
  stream.read(buffer, "copy back");
  CHECK_REPORTS(checker, 1);
}

TEST(of_two_unordered_writers_only_what_they_share_comes_before) {
  Checker checker;
  Actor a(checker, "thread 1"), b(checker, "thread 2"), stream(checker, "stream 1");
  a.write(buffer, "shared");
  b.after(a.now());
  a.write({0x5000, 8}, "only of the first");
  a.publish(flag, 1);
  b.publish(flag, 1);
  stream.await(flag, 1);
  stream.read(buffer, "first reader");
  CHECK_REPORTS(checker, 0);
  stream.read({0x5000, 8}, "second reader");
  CHECK_REPORTS(checker, 1);
}

TEST(an_event_behind_a_wait_passes_its_order_on) {
  Checker checker;
  Actor host(checker, "thread 1"), a(checker, "stream 1"), b(checker, "stream 2");
  a.await(flag, 1);
  a.step();
  const Clock event = a.now();
  b.after(event);
  b.read(buffer, "consumer");
  host.write(buffer, "sum");
  host.publish(flag, 1);
  CHECK_REPORTS(checker, 0);
  b.after(event);  // an old clock, whose wait is resolved
  b.read(buffer, "again");
  CHECK_REPORTS(checker, 0);
}

TEST(waits_behind_waits_are_resolved_in_any_order) {
  for (int order = 0; order < 2; order++) {
    Checker checker;
    Actor host(checker, "thread 1"), other(checker, "thread 2"), a(checker, "stream 1"), b(checker, "stream 2");
    a.await(flag, 1);
    a.publish(flag + 64, 1);
    if (order == 0) b.await(flag + 64, 1);
    host.write(buffer, "sum");
    if (order == 0) host.publish(flag, 1);
    if (order == 1) b.await(flag + 64, 1);
    b.read(buffer, "consumer");
    if (order == 1) host.publish(flag, 1);
    CHECK_REPORTS(checker, 0);
    other.write(buffer, "intruder");
    CHECK_REPORTS(checker, 2);
  }
}

TEST(a_write_behind_a_wait_does_not_satisfy_it) {
  Checker checker;
  Actor host(checker, "thread 1"), a(checker, "stream 1"), b(checker, "stream 2");
  a.await(flag, 1);
  b.await(flag + 64, 1);
  a.publish(flag + 64, 1);  // behind the first wait
  b.publish(flag, 1);       // behind the second one: nobody can go on
  a.read(buffer, "copy back");
  host.write(buffer, "sum");
  CHECK_REPORTS(checker, 0);
  CHECK(checker.usage().undecided == 1);
  host.publish(flag, 1);
  CHECK_REPORTS(checker, 0);
  CHECK(checker.usage().undecided == 0);
}

TEST(a_wait_that_nobody_known_satisfied_orders_nothing) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  auto wait = stream.await(flag, 1);
  stream.read(buffer, "copy back");
  host.write(buffer, "sum");
  CHECK_REPORTS(checker, 0);
  checker.settle(wait);
  CHECK_REPORTS(checker, 1);
  checker.settle(wait);
  CHECK_REPORTS(checker, 1);
}

TEST(a_wait_that_is_settled_comes_after_the_key_of_its_flag) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  auto wait = stream.await(flag, 1);
  stream.read(buffer, "copy back");
  host.write(buffer, "sum");
  checker.release_key(flag, host.now());
  host.write({0x5000, 8}, "after the key");
  checker.settle(wait);
  CHECK_REPORTS(checker, 0);
  stream.read({0x5000, 8}, "of something else");
  CHECK_REPORTS(checker, 1);
}

TEST(who_reads_a_value_comes_after_its_writer) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  stream.write(buffer, "copy out");
  stream.publish(flag, 1);
  stream.write({0x5000, 8}, "next copy out");
  stream.publish(flag, 2);
  checker.observe(flag, 1, host.agent);
  host.read(buffer, "sum");
  CHECK_REPORTS(checker, 0);
  host.read({0x5000, 8}, "next sum");
  CHECK_REPORTS(checker, 1);
  checker.observe(flag, 7, host.agent);  // of nobody
  checker.observe(flag + 64, 1, host.agent);
  checker.observe(flag, 2, host.agent);
  host.read({0x5000, 8}, "right sum");
  CHECK_REPORTS(checker, 1);
}

TEST(the_last_value_is_remembered_when_everybody_knows_it) {
  Checker checker;
  Actor host(checker, "thread 1");
  Actor stream(checker, "stream 1", Kind::stream);
  for (uint32_t i = 1; i <= 100; i++) host.publish(flag, i);
  checker.prune();
  stream.after(host.now());
  auto wait = stream.await(flag, 100);
  stream.read(buffer, "copy back");
  host.write(buffer, "too late");
  CHECK_REPORTS(checker, 1);  // at once: the wait is not open
  checker.settle(wait);
  CHECK_REPORTS(checker, 1);
  host.after(stream.now());
  host.publish(flag, 0);
  stream.after(host.now());
  stream.await(flag, 100);
  stream.read(buffer, "behind a new wait");
  host.write(buffer, "sum");
  host.publish(flag, 100);
  CHECK_REPORTS(checker, 1);
}

TEST(memory_is_released_while_a_stream_waits_in_it) {
  Checker checker;
  Actor host(checker, "thread 1"), stream(checker, "stream 1");
  checker.allocate({flag, 64}, "flags");
  stream.await(flag, 1);
  checker.release({flag, 64}, host.agent);
  CHECK_REPORTS(checker, 1);
  CHECK(contains(checker.text(), "stream 1 reads in [wait for a flag]"));
  CHECK(checker.usage().flags == 0);

  checker.allocate({flag, 64}, "flags");
  stream.await(flag, 1);
  host.publish(flag, 1);
  checker.release({flag, 64}, host.agent);
  CHECK_REPORTS(checker, 1);
}

TEST(keys_order_host_threads) {
  Checker checker;
  Actor a(checker, "thread 1"), b(checker, "thread 2");
  a.write(buffer, "producer");
  checker.release_key(5, a.now());
  a.write({0x5000, 8}, "after the release");
  checker.acquire_key(6, b.agent);
  checker.acquire_key(5, b.agent);
  b.read(buffer, "consumer");
  CHECK_REPORTS(checker, 0);
  b.read({0x5000, 8}, "reader");
  CHECK_REPORTS(checker, 1);
}

TEST(another_key_orders_nothing) {
  Checker checker;
  Actor a(checker, "thread 1"), b(checker, "thread 2");
  a.write(buffer, "producer");
  checker.release_key(5, a.now());
  checker.acquire_key(6, b.agent);
  b.read(buffer, "consumer");
  CHECK_REPORTS(checker, 1);
}
