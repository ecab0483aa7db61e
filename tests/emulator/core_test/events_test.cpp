// Events.
#include <thread>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

TEST(an_event_orders_streams) {
  under_all([] {
    Log log;
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    OK(hold(a));
    log.append(a, 'a');
    OK(record(event, a));
    OK(stream_wait(b, event));
    log.append(b, 'b');
    OK(run_all());
    CHECK(log.text().empty());
    OK(release_held(a));
    OK(stream_synchronize(b));
    CHECK(log.text() == "ab");
  });
}

TEST(a_wait_is_for_the_newest_record_at_the_call) {
  under_all([] {
    Log log;
    StreamHandle a = new_stream(), b = new_stream(), c = new_stream();
    EventHandle event = new_event();
    log.append(a, 'a');
    OK(record(event, a));
    OK(stream_wait(b, event));
    log.append(b, 'b');
    OK(stream_synchronize(a));
    OK(hold(a));
    log.append(a, 'A');
    OK(record(event, a));  // moves neither the wait of b nor what b does
    OK(stream_synchronize(b));
    CHECK(log.text() == "ab");
    OK(stream_wait(c, event));
    FAILS(event_query(event), not_ready);
    FAILS(event_synchronize(event, 20), timeout);
    OK(record(event, b));  // the newest record decides, whatever is pending on another stream
    OK(event_synchronize(event));
    FAILS(stream_synchronize(c, 20), timeout);
    OK(release_held(a));
    OK(stream_synchronize(c));
    CHECK(log.text() == "abA");
  });
}

TEST(an_event_without_a_record_is_complete) {
  under_all([] {
    Log log;
    StreamHandle stream = new_stream();
    EventHandle event = new_event();
    OK(event_query(event));
    OK(event_synchronize(event));
    OK(stream_wait(stream, event));
    OK(stream_query(stream));
    float milliseconds = 0;
    FAILS(elapsed(event, event, &milliseconds), invalid_handle);
  });
}

TEST(a_query_of_an_event_runs_nothing) {
  under("lazy",
        [] {
          Log log;
          StreamHandle stream = new_stream();
          EventHandle event = new_event();
          log.append(stream, 'a');
          OK(record(event, stream));
          for (int i = 0; i < 60; i++) FAILS(event_query(event), not_ready);
          CHECK(log.text().empty());
          while (event_query(event) == Status::not_ready) std::this_thread::yield();
          CHECK(log.text() == "a");
        },
        {{"EMULATOR_KICK_MS", "0"}});
}

TEST(an_event_may_be_destroyed_while_its_record_is_pending) {
  under_all([] {
    Log log;
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    OK(hold(a));
    log.append(a, 'a');
    OK(record(event, a));
    OK(stream_wait(b, event));
    OK(destroy_event(event));
    FAILS(event_query(event), invalid_handle);
    FAILS(destroy_event(event), invalid_handle);
    log.append(b, 'b');
    OK(run_all());
    CHECK(log.text().empty());
    OK(release_held(a));
    OK(stream_synchronize(b));
    CHECK(log.text() == "ab");
  });
}

TEST(events_measure_time_between_their_records) {
  under_all([] {
    StreamHandle stream = new_stream();
    EventHandle from = new_event(), to = new_event(), without = new_event(false);
    OK(hold(stream));
    OK(record(from, stream));
    OK(launch(stream, "slow kernel", {}, {}, [] { usleep(3000); }));
    OK(record(to, stream));
    OK(record(without, stream));
    float milliseconds = 0;
    FAILS(elapsed(from, to, &milliseconds), not_ready);
    OK(release_held(stream));
    OK(event_synchronize(to));
    OK(elapsed(from, to, &milliseconds));
    CHECK(milliseconds >= 3);
    OK(stream_synchronize(stream));
    FAILS(elapsed(from, without, &milliseconds), invalid_handle);
  });
}

TEST(an_event_belongs_to_a_device) {
  under_all([] {
    EventHandle event = new_event();
    StreamHandle near = new_stream();
    OK(set_device(1));
    StreamHandle far = new_stream();
    FAILS(record(event, far), invalid_handle);
    OK(record(event, near));
    OK(stream_wait(far, event));  // any stream may wait for it
    OK(stream_synchronize(far));
  });
}

TEST(threads_may_record_and_wait_at_once) {
  under_all([] {
    constexpr int rounds = 50;
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    std::thread recorder([&] {
      for (int i = 0; i < rounds; i++) OK(record(event, a));
    });
    for (int i = 0; i < rounds; i++) {
      OK(stream_wait(b, event));
      OK(event_synchronize(event));
    }
    recorder.join();
    OK(stream_synchronize(b));
  });
}

static Environment budget_of_events(int count) {
  return {{"EMULATOR_EVENTS", std::to_string(count)}, {"EMULATOR_KICK_MS", "0"}};
}

TEST(a_record_waits_for_a_place_among_the_events_of_the_device) {
  under_all(
      [] {
        StreamHandle held = new_stream(), beside = new_stream();
        EventHandle first = new_event(), second = new_event();
        OK(hold(held));
        OK(record(first, held));
        OK(record(second, held));
        std::atomic<bool> recorded{false};
        std::thread other([&] {
          OK(record(new_event(), beside));
          recorded = true;
        });
        while (emulator_waited_records() == 0) std::this_thread::yield();
        for (int i = 0; i < 20; i++) {
          OK(run_all());
          CHECK(!recorded);
        }
        OK(destroy_event(first));  // its record is still to come
        OK(run_all());
        CHECK(!recorded);
        OK(release_held(held));
        other.join();
        OK(stream_synchronize(beside));
      },
      budget_of_events(2));
}

TEST(a_record_without_a_place_runs_what_it_waits_for) {
  under(
      "lazy",
      [] {
        Log log;
        StreamHandle a = new_stream(), b = new_stream();
        log.append(a, 'a');
        OK(record(new_event(), a));
        CHECK(log.text().empty());
        OK(record(new_event(), b));
        CHECK(log.text() == "a");
        for (int i = 0; i < 20; i++) OK(record(new_event(), b));  // those that have run take no place
      },
      budget_of_events(1));
}
