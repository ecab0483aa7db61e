// The checker through the runtime: each way to order two accesses, with it and without it. A report depends on the calls
// and not on the schedule, so each program has the same number of reports under all of them.
#include <thread>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

// Reports of the program under every schedule.
static void reports(size_t expected, void (*program)()) {
  under_all([=] {
    program();
    OK(run_all());
    REPORTS(expected);
  });
}

static void write(StreamHandle stream, void *address, const char *what = "producer") {
  OK(launch(stream, what, {}, {{address, 4}}, [] {}));
}

static void read(StreamHandle stream, const void *address, const char *what = "consumer") {
  OK(launch(stream, what, {{address, 4}}, {}, [] {}));
}

TEST(streams_without_an_order_conflict) {
  reports(1, [] {
    uint32_t *words = new_words(1);
    write(new_stream(), words);
    read(new_stream(), words);
  });
  reports(0, [] {
    uint32_t *words = new_words(2);
    write(new_stream(), words);
    read(new_stream(), words + 1);  // other memory
    read(new_stream(), words + 1);
  });
}

TEST(an_event_orders_what_precedes_it) {
  reports(0, [] {
    uint32_t *words = new_words(1);
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    write(a, words);
    OK(record(event, a));
    OK(stream_wait(b, event));
    read(b, words);
  });
  reports(1, [] {  // recorded too early
    uint32_t *words = new_words(1);
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    OK(record(event, a));
    write(a, words);
    OK(stream_wait(b, event));
    read(b, words);
  });
  reports(1, [] {  // the wait comes before the record, so it waits for nothing
    uint32_t *words = new_words(1);
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    write(a, words);
    OK(stream_wait(b, event));
    OK(record(event, a));
    read(b, words);
  });
}

// Writes, and reads on another stream when another thread has seen that the write is complete.
static void read_after_the_query_of_another_thread(bool shared) {
  emulator::Options options;
  options.shared_queries = shared;
  OK(emulator::configure(options));
  uint32_t *words = new_words(1);
  StreamHandle a = new_stream();
  EventHandle event = new_event();
  write(a, words);
  OK(record(event, a));
  std::thread([event] {
    while (event_query(event) == Status::not_ready) std::this_thread::yield();
  }).join();
  read(new_stream(), words);
}

TEST(all_threads_know_what_a_query_of_an_event_found_complete) {
  reports(0, [] { read_after_the_query_of_another_thread(true); });
  reports(1, [] { read_after_the_query_of_another_thread(false); });
}

TEST(a_host_that_waited_orders_what_it_queues_next) {
  reports(0, [] {
    uint32_t *words = new_words(1);
    StreamHandle a = new_stream();
    write(a, words);
    OK(stream_synchronize(a));
    read(new_stream(), words);
  });
  reports(0, [] {
    uint32_t *words = new_words(1);
    write(new_stream(), words);
    OK(device_synchronize());
    read(new_stream(), words);
  });
  reports(0, [] {
    uint32_t *words = new_words(1);
    StreamHandle a = new_stream();
    write(a, words);
    while (stream_query(a) == Status::not_ready) std::this_thread::yield();
    read(new_stream(), words);
  });
  reports(0, [] {
    uint32_t *words = new_words(1);
    StreamHandle a = new_stream();
    EventHandle event = new_event();
    write(a, words);
    OK(record(event, a));
    OK(event_synchronize(event));
    read(new_stream(), words);
  });
  reports(1, [] {  // the work has run, but nobody made sure of it
    uint32_t *words = new_words(1);
    write(new_stream(), words);
    OK(run_all());
    read(new_stream(), words);
  });
}

TEST(the_legacy_default_stream_is_an_order) {
  reports(0, [] {
    uint32_t *words = new_words(1);
    write(new_stream(true), words);
    read(default_stream, words);
    write(new_stream(true), words);
  });
  reports(1, [] {
    uint32_t *words = new_words(1);
    write(new_stream(false), words);
    read(default_stream, words);
  });
}

TEST(a_flag_orders_streams) {
  reports(0, [] {
    uint32_t *words = new_words(1), *flag = new_pinned_words(1);
    *flag = 0;
    StreamHandle a = new_stream(), b = new_stream();
    OK(wait_value(b, flag, 1, Comparison::greater_or_equal));
    read(b, words);
    write(a, words);
    OK(write_value(a, flag, 1));
  });
  reports(1, [] {  // the flag is written too early
    uint32_t *words = new_words(1), *flag = new_pinned_words(1);
    *flag = 0;
    StreamHandle a = new_stream(), b = new_stream();
    OK(wait_value(b, flag, 1, Comparison::greater_or_equal));
    read(b, words);
    OK(write_value(a, flag, 1));
    write(a, words);
  });
}

static void read_behind_a_copied_word(bool acquires) {
  uint32_t *pinned = new_pinned_words(2), *flag = pinned + 1, *device = new_words(2);
  *flag = 0;
  StreamHandle stream = new_stream();
  OK(fill_async(device + 1, 7, 4, 1, stream));
  OK(copy_async(pinned, device, 4, CopyKind::any, stream));
  OK(copy_async(flag, device + 1, 4, CopyKind::any, stream));
  OK(run_all());
  CHECK(__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 7);
  if (acquires) emulator_acquire(flag);
  emulator_host_read(pinned, 4, "reduce");
}

TEST(the_cpu_is_ordered_by_annotated_flags) {
  reports(0, [] {
    uint32_t *pinned = new_pinned_words(2), *flag = pinned + 1, *device = new_words(1);
    *flag = 0;
    StreamHandle stream = new_stream();
    OK(wait_value(stream, flag, 1, Comparison::equal));
    OK(copy_async(device, pinned, 4, CopyKind::any, stream));
    emulator_host_write(pinned, 4, "sum");
    *pinned = 5;
    emulator_release(flag);
    __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST);
    OK(stream_synchronize(stream));
    CHECK(word(device) == 5);
  });
  reports(0, [] {
    uint32_t *pinned = new_pinned_words(2), *flag = pinned + 1, *device = new_words(1);
    *flag = 0;
    StreamHandle stream = new_stream();
    OK(copy_async(pinned, device, 4, CopyKind::any, stream));
    OK(write_value(stream, flag, 1));
    OK(run_all());
    CHECK(__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 1);
    emulator_acquire(flag);
    emulator_host_read(pinned, 4, "reduce");
  });
  reports(1, [] {  // the CPU does not look at the flag
    uint32_t *pinned = new_pinned_words(2), *flag = pinned + 1, *device = new_words(1);
    *flag = 0;
    StreamHandle stream = new_stream();
    OK(copy_async(pinned, device, 4, CopyKind::any, stream));
    OK(write_value(stream, flag, 1));
    OK(run_all());
    emulator_host_read(pinned, 4, "reduce");
  });
  // A copy of one word is a flag as well, where the runtime has no other.
  reports(0, [] { read_behind_a_copied_word(true); });
  reports(1, [] { read_behind_a_copied_word(false); });
}

TEST(the_cpu_and_a_stream_conflict_in_pinned_memory) {
  reports(1, [] {
    uint32_t *pinned = new_pinned_words(1), *device = new_words(1);
    StreamHandle stream = new_stream();
    emulator_host_write(pinned, 4, "input");
    OK(copy_async(device, pinned, 4, CopyKind::any, stream));
    emulator_host_write(pinned, 4, "next input");  // the copy may not have read the first one
  });
  reports(0, [] {
    uint32_t *pinned = new_pinned_words(1), *device = new_words(1);
    StreamHandle stream = new_stream();
    emulator_host_write(pinned, 4, "input");
    OK(copy_async(device, pinned, 4, CopyKind::any, stream));
    OK(stream_synchronize(stream));
    emulator_host_write(pinned, 4, "next input");
  });
}

TEST(host_threads_hand_over_by_annotation) {
  auto program = [](bool annotated) {
    uint32_t *words = new_words(1);
    StreamHandle a = new_stream(), b = new_stream();
    static int key;
    std::atomic<int> turn{0};
    // Both threads are known to the emulator before either acts: a thread that appears later comes after all others.
    std::thread other([&] {
      OK(stream_query(b));
      turn = 1;
      while (turn != 2) std::this_thread::yield();
      if (annotated) emulator_acquire(&key);
      read(b, words);
    });
    while (turn != 1) std::this_thread::yield();
    write(a, words);
    OK(stream_synchronize(a));
    if (annotated) emulator_release(&key);
    turn = 2;
    other.join();
    OK(run_all());
    REPORTS(annotated ? 0 : 1);
  };
  under_all([&] { program(true); });
  under_all([&] { program(false); });
}

TEST(threads_may_share_one_clock) {
  under_all(
      [] {
        uint32_t *words = new_words(1);
        StreamHandle a = new_stream(), b = new_stream();
        std::atomic<int> turn{0};
        std::thread other([&] {
          OK(stream_query(b));
          turn = 1;
          while (turn != 2) std::this_thread::yield();
          read(b, words);
        });
        while (turn != 1) std::this_thread::yield();
        write(a, words);
        OK(stream_synchronize(a));
        turn = 2;
        other.join();
        OK(run_all());
        REPORTS(0);
      },
      {{"EMULATOR_HOST_CLOCKS", "shared"}});
}

TEST(accesses_of_a_host_function_have_its_place) {
  static uint32_t *pinned;
  auto reduce = [](void *) {
    emulator_host_read(pinned, 4, "reduce");
    emulator_host_write(pinned, 4, "sum");
  };
  static void (*const function)(void *) = reduce;
  reports(0, [] {
    pinned = new_pinned_words(1);
    uint32_t *device = new_words(1);
    StreamHandle stream = new_stream();
    OK(copy_async(pinned, device, 4, CopyKind::any, stream));
    OK(host_function(stream, function, nullptr));
    OK(copy_async(device, pinned, 4, CopyKind::any, stream));
    OK(stream_synchronize(stream));
    emulator_host_write(pinned, 4, "next input");
  });
  reports(1, [] {
    pinned = new_pinned_words(1);
    uint32_t *device = new_words(1);
    OK(copy_async(pinned, device, 4, CopyKind::any, new_stream()));
    OK(host_function(new_stream(), function, nullptr));
  });
}

TEST(a_report_names_both_accesses_and_the_streams) {
  under_all([] {
    uint32_t *words = new_words(4);
    write(new_stream(), words + 1, "gradient");
    read(new_stream(), words + 1, "all_reduce");
    std::string text = report_text();
    for (const char *part : {"gradient", "all_reduce", "stream 1 of device 0", "stream 2 of device 0",
                             "allocation 1 of device 0 (16 bytes)", "EMULATOR_SCHEDULE="})
      if (text.find(part) == std::string::npos) {
        fprintf(stderr, "no '%s' in\n%s", part, text.c_str());
        exit(1);
      }
    char buffer[32];
    CHECK(emulator_report_text(buffer, sizeof buffer) == text.size());
    CHECK(std::string(buffer) == text.substr(0, sizeof buffer - 1));
    CHECK(emulator_reports() == 1);
    emulator_reset_reports();
    CHECK(emulator_reports() == 0);
  });
}

// A pipeline as a staged collective has it: copies out and copies back on two streams, the CPU between them, flags both
// ways. Values and reports are right under every order that the scheduler finds.
static void staged_pipeline(bool wait_for_copy_back) {
  constexpr uint32_t chunks = 4, slots = 2;
  uint32_t *input = new_words(chunks), *output = new_words(chunks), *staging = new_pinned_words(slots);
  uint32_t *flags = new_pinned_words(2 * chunks);
  for (uint32_t i = 0; i < 2 * chunks; i++) flags[i] = 0;
  StreamHandle compute = new_stream(), out = new_stream(), back = new_stream();
  EventHandle ready = new_event(), taken[chunks], done = new_event();
  for (uint32_t i = 0; i < chunks; i++) OK(fill_async(input + i, 10 + i, 4, 1, compute));
  OK(record(ready, compute));
  OK(stream_wait(out, ready));
  for (uint32_t i = 0; i < chunks; i++) {
    if (i >= slots && wait_for_copy_back) OK(stream_wait(out, taken[i - slots]));
    OK(copy_async(staging + i % slots, input + i, 4, CopyKind::any, out));
    OK(write_value(out, flags + i, 1));
    OK(wait_value(back, flags + chunks + i, 1, Comparison::greater_or_equal));
    OK(copy_async(output + i, staging + i % slots, 4, CopyKind::any, back));
    taken[i] = new_event();
    OK(record(taken[i], back));
  }
  OK(record(done, back));
  OK(stream_wait(compute, done));
  std::thread reducer([=] {
    for (uint32_t i = 0; i < chunks; i++) {
      while (__atomic_load_n(flags + i, __ATOMIC_SEQ_CST) == 0) std::this_thread::yield();
      emulator_acquire(flags + i);
      emulator_host_read(staging + i % slots, 4, "reduce");
      emulator_host_write(staging + i % slots, 4, "reduce");
      __atomic_fetch_add(staging + i % slots, 100U, __ATOMIC_SEQ_CST);
      emulator_release(flags + chunks + i);
      __atomic_store_n(flags + chunks + i, 1U, __ATOMIC_SEQ_CST);
    }
  });
  uint32_t result[chunks];
  OK(copy_async(result, output, sizeof result, CopyKind::any, compute));
  reducer.join();
  if (!wait_for_copy_back) {
    CHECK(report_count() > 0);
    return;
  }
  REPORTS(0);
  for (uint32_t i = 0; i < chunks; i++) CHECK(result[i] == 110 + i);
}

TEST(a_staged_pipeline_is_right_under_every_order) {
  auto program = [] { staged_pipeline(true); };
  under_all(program, {{"EMULATOR_KICK_MS", "5"}});
  under_random_seeds(200, program, {{"EMULATOR_KICK_MS", "5"}});
}

#ifndef __SANITIZE_THREAD__  // the copies of this program race with its additions
TEST(a_staged_pipeline_without_a_wait_for_its_slot_is_reported_under_every_order) {
  auto program = [] { staged_pipeline(false); };
  under_all(program, {{"EMULATOR_KICK_MS", "5"}});
  under_random_seeds(200, program, {{"EMULATOR_KICK_MS", "5"}});
}
#endif
