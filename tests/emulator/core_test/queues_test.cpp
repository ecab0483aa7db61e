// Hardware queues: EMULATOR_QUEUES=n, and the room of streams: EMULATOR_STREAM_ROOM=n.
#include <thread>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

static Environment queues(int count) { return {{"EMULATOR_QUEUES", std::to_string(count)}, {"EMULATOR_KICK_MS", "0"}}; }

// The default stream has the first queue of device 0 and priority 0, so new streams begin with the second one.
TEST(a_stream_blocked_in_a_wait_blocks_those_behind_it_in_its_queue) {
  under_all(
      [] {
        Log log;
        uint32_t *flag = new_pinned_words(1);
        __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
        StreamHandle blocked = new_stream(), beside = new_stream(), behind = new_stream();
        log.append(behind, 'a');  // before the wait
        OK(wait_value(blocked, flag, 1, Comparison::equal));
        log.append(behind, 'b');
        log.append(beside, 'c');
        OK(run_all());
        std::string text = log.text();
        std::sort(text.begin(), text.end());
        CHECK(text == "ac");
        FAILS(stream_synchronize(behind, 20), timeout);
        CHECK(describe().find("behind stream 1 of device 0 in its hardware queue") != std::string::npos);
        __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST);
        OK(stream_synchronize(behind));
        CHECK(log.text().substr(2) == "b");
      },
      queues(2));
}

TEST(a_wait_for_what_is_queued_later_in_the_same_queue_never_ends) {
  auto body = [](bool ends) {
    uint32_t *flag = new_words(1);
    OK(fill(flag, 0, 4, 1));
    OK(device_synchronize());
    StreamHandle consumer = new_stream(), producer = new_stream();
    OK(wait_value(consumer, flag, 1, Comparison::equal));
    OK(write_value(producer, flag, 1));
    if (ends)
      OK(stream_synchronize(consumer));
    else
      FAILS(stream_synchronize(consumer, 20), timeout);
  };
  under_all([&] { body(true); });
  under_all([&] { body(true); }, queues(2));
  under_all([&] { body(false); }, queues(1));
}

TEST(each_priority_and_device_has_queues_of_its_own) {
  under_all(
      [] {
        Log log;
        StreamHandle blocked = new_stream(), urgent = new_stream(false, -1);
        OK(hold(blocked));
        log.append(blocked, 'a');
        log.append(urgent, 'b');
        OK(stream_synchronize(urgent));
        OK(set_device(1));
        StreamHandle other = new_stream();
        log.append(other, 'c');
        OK(stream_synchronize(other));
        CHECK(log.text() == "bc");
        OK(release_held(blocked));
        OK(stream_synchronize(blocked));
        CHECK(log.text() == "bca");
      },
      queues(1));
}

// Streams that wait for each other by events, which are recorded before they are waited for.
static std::string zigzag() {
  Log log;
  std::vector<StreamHandle> streams;
  for (int i = 0; i < 4; i++) streams.push_back(new_stream());
  for (size_t round = 0; round < 6; round++)
    for (size_t i = 0; i < streams.size(); i++) {
      log.append(streams[i], static_cast<char>('a' + i));
      EventHandle event = new_event();
      OK(record(event, streams[i]));
      if (round % 2 == 0) OK(stream_wait(streams[(i + round + 1) % streams.size()], event));
      OK(destroy_event(event));
    }
  OK(device_synchronize());
  return log.text();
}

TEST(one_queue_runs_tasks_in_the_order_of_calls) {
  auto body = [] { CHECK(zigzag() == "abcdabcdabcdabcdabcdabcd"); };
  for (const char *schedule : {"lazy", "eager"}) under(schedule, body, queues(1));
  under_random_seeds(5, body, queues(1));
}

TEST(programs_with_events_end_with_any_number_of_queues) {
  for (int count = 1; count <= 5; count++) under_all([] { CHECK(zigzag().size() == 24); }, queues(count));
}

// Not under the threaded schedule, where the threads of the two streams race in fact.
TEST(a_queue_is_no_order) {
  const auto body = [] {
    uint32_t *words = new_words(10);
    OK(fill_async(words, 1, 4, 10, new_stream()));
    OK(fill_async(words, 2, 4, 10, new_stream()));
    OK(device_synchronize());
    REPORTS(1);
  };
  for (const char *schedule : {"lazy", "eager"}) under(schedule, body, queues(1));
  under_random_seeds(5, body, queues(1));
}

static Environment room(int tasks) {
  return {{"EMULATOR_STREAM_ROOM", std::to_string(tasks)}, {"EMULATOR_KICK_MS", "0"}};
}

TEST(a_call_waits_while_its_stream_is_full) {
  under_all(
      [] {
        Log log;
        uint32_t *flag = new_pinned_words(1);
        __atomic_store_n(flag, 0U, __ATOMIC_SEQ_CST);
        StreamHandle full = new_stream(), beside = new_stream();
        OK(wait_value(full, flag, 1, Comparison::equal));
        for (char letter = 'a'; letter <= 'b'; letter++) log.append(full, letter);
        std::atomic<bool> queued = false;
        std::thread other([&] {
          log.append(full, 'c');
          queued = true;
        });
        log.append(beside, 'A');
        OK(stream_synchronize(beside));  // other streams go on
        FAILS(stream_synchronize(full, 50), timeout);
        CHECK(!queued && log.text() == "A");
        __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST);
        other.join();
        OK(stream_synchronize(full));
        CHECK(log.text() == "Aabc");
      },
      room(3));
}

TEST(a_stream_that_goes_on_is_never_full_for_long) {
  under_all(
      [] {
        Log log;
        StreamHandle stream = new_stream();
        for (char letter = 'a'; letter <= 'z'; letter++) log.append(stream, letter);
        OK(stream_synchronize(stream));
        CHECK(log.text() == "abcdefghijklmnopqrstuvwxyz");
      },
      room(2));
}
