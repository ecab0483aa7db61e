// Flags that streams write and wait for, and host functions.
#include <thread>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

TEST(a_stream_waits_for_a_flag_that_another_writes) {
  under_all([] {
    Log log;
    StreamHandle a = new_stream(), b = new_stream();
    for (uint32_t *flag : {new_pinned_words(1), new_words(1)}) {
      OK(fill_async(flag, 0, 4, 1, a));
      OK(stream_synchronize(a));
      OK(wait_value(b, flag, 1, Comparison::equal));
      log.append(b, 'b');
      log.append(a, 'a');
      OK(write_value(a, flag, 1));
      OK(stream_synchronize(b));
    }
    CHECK(log.text() == "abab");
  });
}

TEST(a_wait_for_a_flag_blocks_no_other_stream) {
  under_all([] {
    Log log;
    uint32_t *flag = new_pinned_words(1);
    __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
    StreamHandle blocked = new_stream(), other = new_stream();
    OK(wait_value(blocked, flag, 1, Comparison::equal));
    log.append(blocked, 'b');
    for (int i = 0; i < 5; i++) {
      log.append(other, 'o');
      OK(stream_synchronize(other));
    }
    CHECK(log.text() == "ooooo");
    FAILS(stream_query(blocked), not_ready);
    __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST);  // by the CPU
    OK(stream_synchronize(blocked));
    CHECK(log.text() == "ooooob");
  });
}

TEST(a_thread_that_waits_for_a_blocked_stream_lets_others_run) {
  under_all(
      [] {
        Log log;
        uint32_t *flag = new_pinned_words(1);
        __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
        StreamHandle blocked = new_stream(), other = new_stream();
        OK(wait_value(blocked, flag, 7, Comparison::greater_or_equal));
        log.append(blocked, 'b');
        log.append(other, 'o');
        OK(write_value(other, flag, 7));
        OK(stream_synchronize(blocked));
        CHECK(log.text() == "ob");
      },
      {{"EMULATOR_KICK_MS", "0"}});
}

TEST(flags_are_compared_as_the_hardware_does) {
  under_all([] {
    struct Case {
      uint32_t flag, value;
      Comparison comparison;
      bool holds;
    };
    const Case cases[] = {
        {5, 5, Comparison::equal, true},
        {6, 5, Comparison::equal, false},
        {5, 5, Comparison::greater_or_equal, true},
        {4, 5, Comparison::greater_or_equal, false},
        {0x00000001, 0xffffffff, Comparison::greater_or_equal, true},   // cyclic: 2 steps later
        {0xffffffff, 0x00000001, Comparison::greater_or_equal, false},  // never releases
        {0x7fffffff, 0x3fffffff, Comparison::greater_or_equal, true},
        {0x7fffffff, 0x00000000, Comparison::greater_or_equal, true},   // 2^31 - 1 steps later
        {0x80000000, 0x00000000, Comparison::greater_or_equal, false},  // 2^31 steps later count as earlier
        {0x00000000, 0x80000001, Comparison::greater_or_equal, true},
        {0x00000000, 0x80000000, Comparison::greater_or_equal, false},
        {0xffffffff, 0x3fffffff, Comparison::greater_or_equal, false},
        {0x6, 0x4, Comparison::bitwise_and, true},
        {0x3, 0x4, Comparison::bitwise_and, false},
        {0x0000ffff, 0x00ff0000, Comparison::bitwise_nor, true},
        {0x0000ffff, 0xffff0000, Comparison::bitwise_nor, false},
    };
    uint32_t *flag = new_pinned_words(1);
    for (const Case &one : cases) {
      StreamHandle stream = new_stream();
      __atomic_store_n(flag, one.flag, __ATOMIC_SEQ_CST);
      OK(wait_value(stream, flag, one.value, one.comparison));
      if (one.holds) {
        OK(stream_synchronize(stream));
      } else {
        OK(run_all());
        FAILS(stream_query(stream), not_ready);
        __atomic_store_n(flag, one.comparison == Comparison::bitwise_nor ? 0 : one.value, __ATOMIC_SEQ_CST);
        OK(stream_synchronize(stream));
      }
    }
  });
}

TEST(flags_lie_in_memory_that_devices_reach) {
  under_all([] {
    StreamHandle stream = new_stream();
    alignas(64) static uint32_t pageable[16];
    FAILS(write_value(stream, pageable, 1), invalid_value);
    FAILS(wait_value(stream, pageable, 1, Comparison::equal), invalid_value);
    OK(register_host(pageable, sizeof pageable));
    OK(write_value(stream, pageable, 1));
    FAILS(write_value(stream, reinterpret_cast<char *>(pageable) + 1, 1), invalid_value);
    OK(stream_synchronize(stream));
    CHECK(__atomic_load_n(pageable, __ATOMIC_SEQ_CST) == 1);
    OK(unregister_host(pageable));
  });
}

TEST(a_host_polls_a_flag_that_a_stream_writes) {
  under_all(
      [] {
        uint32_t *flag = new_pinned_words(1);
        __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
        StreamHandle stream = new_stream();
        OK(write_value(stream, flag, 3));
        while (__atomic_load_n(flag, __ATOMIC_SEQ_CST) != 3) std::this_thread::yield();
      },
      {{"EMULATOR_KICK_MS", "5"}});
}

// ---- host functions

struct Visit {
  Log log;
  std::thread::id thread;
  bool inside = false;
  Status status = Status::success;
};

TEST(a_host_function_runs_in_its_place_on_another_thread) {
  under_all([] {
    static Visit visit;
    StreamHandle stream = new_stream();
    visit.log.append(stream, 'a');
    OK(host_function(
        stream,
        [](void *argument) {
          auto *visit = static_cast<Visit *>(argument);
          visit->thread = std::this_thread::get_id();
          visit->inside = inside_host_function();
          visit->log.add('f');
        },
        &visit));
    visit.log.append(stream, 'b');
    OK(stream_synchronize(stream));
    CHECK(visit.log.text() == "afb");
    CHECK(visit.inside && !inside_host_function());
    CHECK(visit.thread != std::this_thread::get_id());
  });
}

TEST(a_host_function_may_not_call_the_runtime) {
  under_all([] {
    static Visit visit;
    static StreamHandle stream;
    stream = new_stream();
    OK(host_function(
        stream,
        [](void *argument) {
          auto *visit = static_cast<Visit *>(argument);
          void *address = nullptr;
          for (Status status :
               {allocate(16, &address), stream_query(stream), enter("cudaMalloc"), device_synchronize()})
            if (status != Status::not_permitted) visit->log.add('x');
          visit->status = stream_synchronize(stream);
        },
        &visit));
    OK(stream_synchronize(stream));
    CHECK(visit.status == Status::not_permitted && visit.log.text().empty());
  });
}

TEST(a_host_function_that_blocks_blocks_its_stream_only) {
  under_all([] {
    static std::atomic<bool> go{false};
    Log log;
    StreamHandle a = new_stream(), b = new_stream();
    OK(host_function(
        a,
        [](void *) {
          while (!go) std::this_thread::yield();
        },
        nullptr));
    log.append(a, 'a');
    log.append(b, 'b');
    OK(stream_synchronize(b));
    OK(run_all());
    CHECK(log.text() == "b");
    FAILS(stream_query(a), not_ready);
    go = true;
    OK(stream_synchronize(a));
    CHECK(log.text() == "ba");
  });
}

TEST(a_host_function_may_write_a_flag_for_a_stream) {
  under_all(
      [] {
        static uint32_t *flag;
        flag = new_pinned_words(1);
        __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
        StreamHandle a = new_stream(), b = new_stream();
        OK(wait_value(b, flag, 1, Comparison::equal));
        OK(host_function(a, [](void *) { __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST); }, nullptr));
        OK(stream_synchronize(b));
      },
      {{"EMULATOR_KICK_MS", "0"}});
}
