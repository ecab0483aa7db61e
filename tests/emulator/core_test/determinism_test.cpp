// The seed and the order of calls decide the order of tasks: in each process, and however fast the calls come.
#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

// Runs the program in a process of its own and returns the order that its log shows.
static std::string order_of(void (*program)(Log &), const char *schedule, int seed) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  under(schedule,
        [&] {
          Log log;
          program(log);
          OK(device_synchronize());
          std::string order = log.text();
          CHECK(write(ends[1], order.data(), order.size()) == static_cast<ssize_t>(order.size()));
        },
        {{"EMULATOR_SEED", std::to_string(seed)}, {"EMULATOR_KICK_MS", "0"}, {"EMULATOR_POLLS", "4"}});
  close(ends[1]);
  char order[1024];
  ssize_t length = read(ends[0], order, sizeof order);
  close(ends[0]);
  CHECK(length > 0);
  return {order, static_cast<size_t>(length)};
}

static void same_order(void (*program)(Log &)) {
  for (const char *schedule : {"lazy", "eager", "random"})
    for (int seed = 1; seed <= 5; seed++) {
      std::string order = order_of(program, schedule, seed);
      for (int again = 0; again < 5; again++) {
        std::string other = order_of(program, schedule, seed);
        if (other != order) fprintf(stderr, "%s, seed %d: %s, then %s\n", schedule, seed, order.c_str(), other.c_str());
        CHECK(other == order);
      }
    }
}

// Without a wait of the query for the work that it starts, tasks run while the loop queues more.
TEST(a_host_that_queries_keeps_the_order) {
  same_order([](Log &log) {
    std::vector<StreamHandle> streams;
    for (int i = 0; i < 4; i++) streams.push_back(new_stream());
    EventHandle event = new_event();
    for (int round = 0; round < 20; round++) {
      for (size_t i = 0; i < streams.size(); i++) log.append(streams[i], static_cast<char>('a' + i));
      OK(record(event, streams[static_cast<size_t>(round) % 4]));
      for (int i = 0; i < 4; i++) (void)event_query(event);
    }
  });
}

// Without a wait for the work that the end of a hold starts, it runs while the program queues more.
TEST(the_end_of_a_hold_keeps_the_order) {
  same_order([](Log &log) {
    StreamHandle other = new_stream(), held = new_stream();  // the first one goes first where there is a choice
    for (int round = 0; round < 20; round++) {
      OK(hold(held));
      for (char letter : {'a', 'b', 'c', 'd'}) log.append(held, letter);
      OK(release_held(held));
      for (char letter : {'1', '2', '3', '4'}) log.append(other, letter);
    }
  });
  under("eager", [] {
    Log log;
    StreamHandle held = new_stream();
    OK(hold(held));
    log.append(held, 'a');
    log.append(held, 'b');
    OK(release_held(held));
    CHECK(log.text() == "ab");
  });
}

TEST(records_waits_and_graphs_keep_the_order) {
  same_order([](Log &log) {
    StreamHandle a = new_stream(), b = new_stream(true), c = new_stream();
    EventHandle event = new_event();
    GraphHandle graph = nullptr;
    OK(begin_capture(c, CaptureMode::global));
    log.append(c, 'g');
    log.append(c, 'h');
    OK(end_capture(c, &graph));
    for (int round = 0; round < 10; round++) {
      log.append(a, 'a');
      OK(record(event, a));
      log.append(b, 'b');
      OK(stream_wait(c, event));
      OK(destroy_event(event));
      event = new_event();
      OK(launch_graph(graph, c));
      log.append(legacy_stream, 'l');
      if (round % 4 == 3) OK(stream_synchronize(c));
    }
  });
}
