// The fault plan, the environment, forks and the end of the process.
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <thread>

#include "../core/fault_plan.hpp"
#include "../core/late.hpp"
#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

static bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

// Runs the body in a process that is to end with this exit status, or by this signal if it is below 0. Returns what the
// process wrote to its standard error.
static std::string ends_with(int expected, const Environment &environment, const std::function<void()> &body) {
  int ends[2];
  CHECK(pipe(ends) == 0);
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    bound_child();
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    for (const auto &[name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    body();
    exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  bool as_expected = expected < 0 ? WIFSIGNALED(status) && WTERMSIG(status) == -expected
                                  : WIFEXITED(status) && WEXITSTATUS(status) == expected;
  if (!as_expected) fprintf(stderr, "status %x instead of %d: %s\n", status, expected, text.c_str());
  CHECK(as_expected);
  return text;
}

TEST(a_fault_plan_is_parsed) {
  FaultPlan plan;
  CHECK(plan.parse("").empty());
  CHECK(plan.parse("a@2=out_of_memory;;b@1+=#719;memory=64K;missing=c;stuck=2@5;stuck=3;delay=300;a@4=timeout") == "");
  CHECK(!plan.call("a"));
  CHECK(plan.call("a")->status == Status::out_of_memory);
  CHECK(!plan.call("a"));
  CHECK(plan.call("a")->status == Status::timeout);
  for (int i = 0; i < 3; i++) {
    auto fault = plan.call("b");
    CHECK(fault->status == Status::injected && fault->code == 719);
  }
  CHECK(!plan.call("c"));
  CHECK(plan.parse("d@1=#0") == "" && plan.call("d")->status == Status::injected);  // left out, and successful
  CHECK(plan.parse("e@1=late#9@100;f@1=late#0@0") == "");
  const auto late = plan.call("e");
  CHECK(late->status == Status::success && late->code == 9 && late->late_ms == 100);
  CHECK(plan.call("f")->code == 0);
  CHECK(plan.missing("c") && !plan.missing("a"));
  CHECK(plan.memory() == 64 << 10 && plan.delay_us() == 300);
  CHECK(plan.stuck_after(2) == 5U && plan.stuck_after(3) == 0U && !plan.stuck_after(1));
  CHECK(plan.parse("breaks=aten::cosh@2=#710;breaks=copy of@1=device_failed") == "");
  CHECK(!plan.begins("aten::cosh.out") && !plan.begins("aten::cos") && plan.begins("aten::cosh")->code == 710);
  CHECK(!plan.begins("aten::cosh") && plan.begins("copy of 8 bytes")->status == Status::device_failed);
}

TEST(a_wrong_fault_plan_is_refused) {
  for (const char *wrong :
       {"x",           "a=out_of_memory",  "a@=timeout",   "a@0=timeout",   "a@1=success",  "a@1=nothing",
        "a@1=#x",      "a@1=#99999999999", "a@1x=timeout", "memory=x",      "memory=0",     "memory=5T",
        "delay=-1",    "delay=2000000",    "stuck=",       "stuck=1@",      "stuck=a@1",    "stuck=0",
        "stuck=1@2@3", "missing=",         "missing=a b",  "@1=timeout",    " a@1=timeout", "a@1=#",
        "a@+=timeout", "delay=",           "a@1=late#1",   "a@1=late#@1",   "a@1=late#1@",  "a@1=late#1@99999",
        "a@1=late@1",  "breaks=a@1",       "breaks=@1=#1", "breaks=a@0=#1", "breaks=a=#1",  "breaks=a@1=success"}) {
    FaultPlan plan;
    if (plan.parse(wrong).empty()) fprintf(stderr, "accepted: %s\n", wrong);
    CHECK(contains(plan.parse(wrong), std::string("'") + wrong + "'"));
  }
}

TEST(every_status_has_a_name) {
  for (int i = 0; i < static_cast<int>(Status::count); i++) {
    auto status = static_cast<Status>(i);
    CHECK(status_named(name(status)) == status);
  }
  CHECK(!status_named("no such status"));
  CHECK(strcmp(name(Status::captured_event), "captured_event") == 0 && strcmp(name(Status::injected), "injected") == 0);
}

TEST(calls_of_a_skin_fail_by_the_plan) {
  under("lazy",
        [] {
          FAILS(enter("cudaMalloc"), success);
          FAILS(enter("cudaMalloc"), out_of_memory);
          FAILS(enter("cudaMalloc"), success);
          FAILS(enter("cuInit"), injected);
          CHECK(injected_code() == 719);
          CHECK(symbol_missing("cuMemHostRegister") && !symbol_missing("cuInit"));
        },
        {{"EMULATOR_FAULTS", "cudaMalloc@2=out_of_memory;cuInit@1=#719;missing=cuMemHostRegister"}});
}

TEST(a_call_that_cannot_be_late_ends_the_process) {
  const Environment plan = {{"EMULATOR_FAULTS", "cudaMalloc@1=late#7@1"}};
  std::string text = ends_with(-SIGABRT, plan, [] {
    OK(enter("cudaMalloc"));
    OK(enter("cudaFree"));
  });
  CHECK(contains(text, "cudaMalloc has no way to be late"));
  text = ends_with(-SIGABRT, plan, [] { std::thread([] { OK(enter("cudaMalloc")); }).join(); });
  CHECK(contains(text, "cudaMalloc has no way to be late"));
  ends_with(0, plan, [] {
    OK(enter("cudaMalloc"));
    const auto late = take_late();
    CHECK(late->code == 7 && late->ms == 1 && !take_late());
    await_late(*late);
    OK(enter("cudaFree"));
  });
}

TEST(the_plan_limits_memory) {
  under("lazy",
        [] {
          void *address = nullptr;
          OK(allocate(65536, &address));
          FAILS(allocate(1, &address), out_of_memory);
        },
        {{"EMULATOR_FAULTS", "memory=64K"}, {"EMULATOR_MEMORY", "1G"}});
}

TEST(a_stuck_stream_begins_nothing_more) {
  under_all(
      [] {
        Log log;
        StreamHandle first = new_stream(), stuck = new_stream();
        for (char letter : {'a', 'b', 'c'}) log.append(stuck, letter);
        log.append(first, '1');
        OK(stream_synchronize(first));
        OK(run_all());
        std::string text = log.text();
        CHECK(text.size() == 3 && contains(text, "1") && text.find('a') < text.find('b') && !contains(text, "c"));
        FAILS(stream_synchronize(stuck, 20), timeout);
        FAILS(stream_query(stuck), not_ready);
        CHECK(contains(describe(), "stream 2 of device 0: 1 queued, next 'append c', stuck by the fault plan"));
      },
      {{"EMULATOR_FAULTS", "stuck=2@2"}});
}

TEST(a_task_breaks_the_devices_of_its_process) {
  under_all(
      [] {
        Log log;
        StreamHandle first = new_stream(), second = new_stream();
        EventHandle event = nullptr;
        OK(create_event({}, &event));
        OK(hold(first));
        log.append(first, 'a');
        log.append(first, 'b');
        log.append(first, 'c');
        OK(record(event, first));
        OK(release_held(first));
        FAILS(event_synchronize(event), device_failed);
        FAILS(event_query(event), device_failed);
        FAILS(stream_wait(second, event), device_failed);
        FAILS(launch(second, "kernel", {}, {}, [] {}), device_failed);
        FAILS(stream_query(second), device_failed);
        FAILS(device_synchronize(), device_failed);
        OK(run_all());
        CHECK(log.text() == "a");
        int device = -1;
        OK(current_device(&device));
      },
      {{"EMULATOR_FAULTS", "breaks=append@2=device_failed"}});
}

TEST(delays_make_work_late) {
  under_all(
      [] {
        StreamHandle stream = new_stream();
        auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < 40; i++) OK(host_function(stream, [](void *) {}, nullptr));
        OK(stream_synchronize(stream));
        // 40 delays of up to 1 ms; all of them together are below 2 ms for no seed that a test meets.
        CHECK(std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(2));
      },
      {{"EMULATOR_FAULTS", "delay=1000"}});
}

TEST(bad_variables_end_the_process_with_a_sentence) {
  const std::pair<Environment, const char *> cases[] = {
      {{{"EMULATOR_SCHEDULE", "fast"}}, "EMULATOR_SCHEDULE=fast: expected lazy, eager, random or threaded"},
      {{{"EMULATOR_SEED", "x"}}, "EMULATOR_SEED=x: expected a number"},
      {{{"EMULATOR_DEVICES", "65"}}, "EMULATOR_DEVICES=65"},
      {{{"EMULATOR_MEMORY", "much"}}, "EMULATOR_MEMORY=much: expected a number of bytes"},
      {{{"EMULATOR_HOST_CLOCKS", "one"}}, "EMULATOR_HOST_CLOCKS=one: expected thread or shared"},
      {{{"EMULATOR_QUEUES", "many"}}, "EMULATOR_QUEUES=many: expected a number"},
      {{{"EMULATOR_FAULTS", "a@1=nothing"}},
       "EMULATOR_FAULTS=a@1=nothing: expected 'a@1=nothing': no status of this name"},
  };
  for (const auto &[environment, sentence] : cases)
    CHECK(contains(ends_with(-SIGABRT, environment, [] { (void)device_count(); }), sentence));
}

TEST(a_process_may_have_no_device) {
  under("lazy",
        [] {
          CHECK(device_count() == 0);
          void *address = nullptr;
          FAILS(allocate(1, &address), no_device);
          FAILS(set_device(0), invalid_device);
        },
        {{"EMULATOR_DEVICES", "0"}});
}

TEST(a_fork_of_a_process_with_a_runtime_is_refused) {
  under_all([] {
    Log log;
    StreamHandle stream = new_stream();
    OK(hold(stream));
    log.append(stream, 'a');
    ends_with(0, {}, [&] {
      void *address = nullptr;
      FAILS(allocate(16, &address), not_initialized);
      FAILS(stream_synchronize(stream), not_initialized);
      FAILS(enter("cuInit"), not_initialized);
      emulator_host_read(&address, 8, "nothing");
      CHECK(emulator_reports() == 0);
    });
    OK(release_held(stream));
    OK(stream_synchronize(stream));
    CHECK(log.text() == "a");
  });
}

// Written by a task that must not run.
static void say(const char *text) { CHECK(write(2, text, strlen(text)) > 0); }

// Destroyed before the runtime has ended if it was made after the first call, and after that if it was made before.
struct AllocatesWhenDestroyed {
  ~AllocatesWhenDestroyed() {
    void *address = nullptr;
    say(name(allocate(16, &address)));
  }
};

TEST(work_that_is_queued_at_exit_is_dropped) {
  for (const char *schedule : {"lazy", "threaded", "random", "eager"}) {
    std::string text = ends_with(3, {{"EMULATOR_SCHEDULE", schedule}, {"EMULATOR_KICK_MS", "1"}}, [] {
      static AllocatesWhenDestroyed before;
      StreamHandle stream = new_stream();
      OK(hold(stream));
      auto owned = std::shared_ptr<int>(new int, [](int *number) {
        say("destroyed");
        delete number;
      });
      OK(launch(stream, "kernel", {}, {}, [owned] { say("ran"); }));
      owned = nullptr;
      static AllocatesWhenDestroyed after;
      exit(3);
    });
    CHECK(!contains(text, "ran") && !contains(text, "destroyed"));
    CHECK(contains(text, "successshutting_down"));
  }
}

TEST(a_host_function_that_never_returns_does_not_hold_up_the_exit) {
  for (const char *schedule : {"lazy", "threaded", "eager"})
    ends_with(4, {{"EMULATOR_SCHEDULE", schedule}}, [] {
      static std::atomic<bool> began{false};
      StreamHandle stream = new_stream();
      OK(host_function(
          stream,
          [](void *) {
            began = true;
            while (true) pause();
          },
          nullptr));
      while (!began) (void)stream_query(stream);
      exit(4);
    });
}

TEST(a_wait_that_lasts_names_the_streams_and_the_seed) {
  std::string text =
      ends_with(0, {{"EMULATOR_STALL_S", "1"}, {"EMULATOR_SCHEDULE", "random"}, {"EMULATOR_SEED", "42"}}, [] {
        Log log;
        StreamHandle stream = new_stream();
        OK(hold(stream));
        log.append(stream, 'a');
        FAILS(stream_synchronize(stream, 2500), timeout);
      });
  CHECK(contains(text, "a thread waits for stream 1 of device 0 since 1 s; EMULATOR_SCHEDULE=random EMULATOR_SEED=42"));
  CHECK(contains(text, "stream 1 of device 0: 1 queued, next 'append a', held"));
}
