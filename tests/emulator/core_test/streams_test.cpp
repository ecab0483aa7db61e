// Streams and the scheduler.
#include <algorithm>
#include <thread>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

TEST(a_stream_is_first_in_first_out) {
  under_all([] {
    Log log;
    StreamHandle stream = new_stream();
    for (char letter = 'a'; letter <= 'z'; letter++) log.append(stream, letter);
    OK(stream_synchronize(stream));
    CHECK(log.text() == "abcdefghijklmnopqrstuvwxyz");
  });
}

TEST(a_lazy_schedule_runs_what_is_waited_for_and_nothing_else) {
  under("lazy",
        [] {
          Log log;
          StreamHandle a = new_stream(), b = new_stream(), c = new_stream();
          EventHandle event = new_event();
          log.append(a, 'a');
          log.append(b, 'b');
          OK(record(event, b));
          log.append(b, 'B');
          OK(stream_wait(c, event));
          log.append(c, 'c');
          CHECK(log.text().empty());
          OK(stream_synchronize(c));
          CHECK(log.text() == "bc");
          OK(device_synchronize());
          CHECK(log.text() == "bcaB");
        },
        {{"EMULATOR_KICK_MS", "0"}});
}

TEST(an_eager_schedule_runs_work_at_the_call) {
  under("eager", [] {
    Log log;
    StreamHandle stream = new_stream();
    log.append(stream, 'a');
    CHECK(log.text() == "a");
  });
}

// Four streams without any order between them.
static std::string order_of_streams() {
  Log log;
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 4; i++) streams.push_back(new_stream());
  for (int round = 0; round < 4; round++)
    for (size_t i = 0; i < streams.size(); i++) log.append(streams[i], static_cast<char>('a' + i));
  OK(device_synchronize());
  return log.text();
}

// Runs order_of_streams() under a seed and returns what it returns.
static std::string order_under_seed(int seed) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  under("random",
        [&] {
          std::string order = order_of_streams();
          CHECK(write(ends[1], order.data(), order.size()) == static_cast<ssize_t>(order.size()));
        },
        {{"EMULATOR_SEED", std::to_string(seed)}, {"EMULATOR_KICK_MS", "0"}});
  char order[16];
  CHECK(read(ends[0], order, sizeof order) == sizeof order);
  close(ends[0]);
  close(ends[1]);
  return {order, sizeof order};
}

TEST(a_seed_gives_one_order_and_seeds_give_different_orders) {
  std::vector<std::string> orders;
  for (int seed = 1; seed <= 20; seed++) {
    orders.push_back(order_under_seed(seed));
    if (seed <= 5) CHECK(order_under_seed(seed) == orders.back());
  }
  std::sort(orders.begin(), orders.end());
  orders.erase(std::unique(orders.begin(), orders.end()), orders.end());
  CHECK(orders.size() >= 15);
}

TEST(a_query_runs_nothing) {
  under("lazy",
        [] {
          Log log;
          StreamHandle stream = new_stream();
          log.append(stream, 'a');
          for (int i = 0; i < 60; i++) FAILS(stream_query(stream), not_ready);
          CHECK(log.text().empty());
          OK(stream_synchronize(stream));
          OK(stream_query(stream));
        },
        {{"EMULATOR_KICK_MS", "0"}});
}

TEST(a_loop_of_queries_ends) {
  under_all(
      [] {
        Log log;
        StreamHandle first = new_stream(), stream = new_stream();
        EventHandle event = new_event();
        log.append(first, 'a');
        OK(record(event, first));
        OK(stream_wait(stream, event));
        log.append(stream, 'b');
        while (stream_query(stream) == Status::not_ready) std::this_thread::yield();
        CHECK(log.text() == "ab");
      },
      {{"EMULATOR_KICK_MS", "0"}});
}

TEST(work_that_nobody_waits_for_runs_in_the_end) {
  under_all(
      [] {
        StreamHandle stream = new_stream();
        for (int i = 0; i < 5; i++) {  // again when the thread that runs tasks sleeps
          std::atomic<bool> ran{false};
          OK(launch(stream, "kernel", {}, {}, [&] { ran = true; }));
          while (!ran) std::this_thread::yield();
        }
      },
      {{"EMULATOR_KICK_MS", "5"}});
}

TEST(nothing_begins_on_a_held_stream) {
  under_all([] {
    Log log;
    StreamHandle a = new_stream(), b = new_stream();
    CHECK(emulator_hold(a) == 0);
    log.append(a, 'a');
    log.append(b, 'b');
    OK(run_all());
    CHECK(log.text() == "b");
    FAILS(stream_synchronize(a, 20), timeout);
    CHECK(log.text() == "b");
    CHECK(emulator_finished("append a") == 0);
    CHECK(emulator_release_stream(a) == 0);
    OK(stream_synchronize(a));
    CHECK(log.text() == "ba");
    CHECK(emulator_finished("append a") == 1);
    CHECK(emulator_finished("append") == 2);
    OK(destroy_stream(a));
    CHECK(emulator_hold(a) == -1);
  });
}

TEST(the_legacy_default_stream_orders_blocking_streams_only) {
  under_all([] {
    Log log;
    StreamHandle blocking = new_stream(true), other = new_stream(false);
    OK(hold(blocking));
    log.append(blocking, 'a');
    log.append(default_stream, 'b');
    log.append(other, 'c');
    OK(run_all());
    CHECK(log.text() == "c");
    OK(release_held(blocking));
    OK(stream_synchronize(default_stream));
    CHECK(log.text() == "cab");
    OK(hold(legacy_stream));
    log.append(legacy_stream, 'd');
    log.append(blocking, 'e');
    OK(run_all());
    CHECK(log.text() == "cab");
    OK(release_held(legacy_stream));
    OK(stream_synchronize(blocking));
    CHECK(log.text() == "cabde");
  });
}

TEST(a_default_stream_that_is_not_legacy_orders_nothing) {
  under_all([] {
    Options options;
    options.legacy_default_stream = false;
    OK(configure(options));
    Log log;
    StreamHandle blocking = new_stream(true);
    OK(hold(blocking));
    log.append(blocking, 'a');
    log.append(default_stream, 'b');
    OK(stream_synchronize(default_stream));
    CHECK(log.text() == "b");
    FAILS(configure(options), not_permitted);
  });
}

TEST(each_thread_has_a_default_stream) {
  under_all([] {
    Log log;
    OK(hold(thread_stream));
    log.append(thread_stream, 'a');
    uint64_t mine = 0, theirs = 0;
    OK(stream_number(thread_stream, &mine));
    std::thread([&] {
      log.append(thread_stream, 'b');
      OK(stream_synchronize(thread_stream));
      OK(stream_number(thread_stream, &theirs));
    }).join();
    CHECK(mine != theirs);
    CHECK(log.text() == "b");
    log.append(legacy_stream, 'c');  // comes after the thread's stream
    OK(run_all());
    CHECK(log.text() == "b");
    OK(release_held(thread_stream));
    OK(stream_synchronize(legacy_stream));
    CHECK(log.text() == "bac");
  });
}

TEST(a_stream_may_be_destroyed_while_it_has_work) {
  under_all([] {
    Log log;
    StreamHandle stream = new_stream(), last = new_stream();
    EventHandle event = new_event();
    log.append(stream, 'a');
    OK(record(event, stream));
    OK(destroy_stream(stream));
    FAILS(stream_query(stream), invalid_handle);
    FAILS(destroy_stream(stream), invalid_handle);
    OK(stream_wait(last, event));
    OK(stream_synchronize(last));
    CHECK(log.text() == "a");
  });
}

TEST(priorities_decide_where_the_schedule_has_a_choice) {
  under("lazy",
        [] {
          Log log;
          StreamHandle low = new_stream(false, 0), high = new_stream(false, -5);
          log.append(low, 'l');
          log.append(high, 'h');
          OK(run_all());
          CHECK(log.text() == "hl");
          StreamFlags flags;
          OK(stream_flags(high, &flags));
          CHECK(flags.priority == -5 && !flags.blocking);
        },
        {{"EMULATOR_KICK_MS", "0"}});
}

TEST(the_current_device_belongs_to_the_thread) {
  under_all([] {
    int device = -1;
    OK(set_device(1));
    std::thread([&] { OK(current_device(&device)); }).join();
    CHECK(device == 0);
    OK(current_device(&device));
    CHECK(device == 1);
    FAILS(set_device(2), invalid_device);
    StreamHandle stream = new_stream();
    OK(set_device(0));
    OK(stream_device(stream, &device));
    CHECK(device == 1);
    bool can = false;
    OK(can_access_peer(0, 1, &can));
    CHECK(can);
    OK(enable_peer_access(1));
    FAILS(enable_peer_access(1), peer_access_enabled);
    OK(disable_peer_access(1));
    FAILS(disable_peer_access(1), peer_access_not_enabled);
  });
}

TEST(a_skin_may_want_a_chosen_device_and_its_own_streams) {
  under_all([] {
    Options options;
    options.implicit_device = false;
    options.any_device_streams = false;
    OK(configure(options));
    StreamHandle stream = nullptr;
    FAILS(create_stream({}, &stream), no_current_device);
    OK(set_device(0));
    stream = new_stream();
    OK(set_device(1));
    FAILS(stream_synchronize(stream), wrong_device);
  });
}

TEST(devices_do_not_wait_for_each_other) {
  under_all([] {
    Log log;
    StreamHandle first = new_stream();
    OK(hold(first));
    log.append(first, 'a');
    OK(set_device(1));
    StreamHandle second = new_stream();
    log.append(second, 'b');
    OK(device_synchronize());
    CHECK(log.text() == "b");
  });
}

TEST(waits_call_the_functions_of_the_skin) {
  under("lazy", [] {
    static int depth = 0, waits = 0;
    Options options;
    options.before_wait = []() -> void * {
      depth++;
      waits++;
      return &depth;
    };
    options.after_wait = [](void *token) {
      CHECK(token == &depth);
      depth--;
    };
    OK(configure(options));
    Log log;
    log.append(default_stream, 'a');
    CHECK(waits == 0);
    OK(device_synchronize());
    CHECK(waits == 1 && depth == 0);
  });
}
