// Captures and graphs.
#include <memory>
#include <thread>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

static CaptureStatus status_of(StreamHandle stream) {
  CaptureStatus status = CaptureStatus::none;
  uint64_t id = 0;
  OK(capture_status(stream, &status, &id));
  CHECK((status == CaptureStatus::none) == (id == 0));
  return status;
}

TEST(what_is_captured_runs_when_the_graph_is_launched) {
  under_all([] {
    Log log;
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle fork = new_event(), join = new_event();
    OK(begin_capture(a, CaptureMode::global));
    log.append(a, 'a');
    OK(record(fork, a));
    OK(stream_wait(b, fork));
    CHECK(status_of(b) == CaptureStatus::active);
    log.append(b, 'b');
    OK(record(join, b));
    OK(stream_wait(a, join));
    log.append(a, 'c');
    GraphHandle graph = nullptr;
    OK(end_capture(a, &graph));
    CHECK(status_of(a) == CaptureStatus::none && status_of(b) == CaptureStatus::none);
    OK(device_synchronize());
    CHECK(log.text().empty());
    size_t tasks = 0;
    OK(graph_size(graph, &tasks));
    CHECK(tasks == 3);
    for (int i = 0; i < 2; i++) OK(launch_graph(graph, b));
    OK(stream_synchronize(b));
    CHECK(log.text() == "abcabc");
    OK(destroy_graph(graph));
    FAILS(launch_graph(graph, b), invalid_handle);
    FAILS(destroy_graph(graph), invalid_handle);
  });
}

TEST(a_graph_copies_what_is_there_when_it_runs) {
  under_all([] {
    uint32_t *pinned = new_pinned_words(1), *device = new_words(1), *flag = new_pinned_words(1);
    StreamHandle stream = new_stream();
    GraphHandle graph = nullptr;
    OK(begin_capture(stream, CaptureMode::global));
    OK(wait_value(stream, flag, 1, Comparison::equal));
    OK(copy_async(device, pinned, 4, CopyKind::any, stream));
    OK(write_value(stream, flag, 0));
    OK(end_capture(stream, &graph));
    for (uint32_t round = 1; round < 4; round++) {
      *pinned = round;
      emulator_release(flag);
      __atomic_store_n(flag, 1U, __ATOMIC_SEQ_CST);
      OK(launch_graph(graph, stream));
      OK(stream_synchronize(stream));
      CHECK(word(device) == round);
      CHECK(__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0);
    }
    REPORTS(0);
  });
}

// A call breaks a capture: it has this status and the capture ends without a graph.
static void breaks(Status expected, const std::function<Status(StreamHandle)> &call,
                   CaptureMode mode = CaptureMode::global) {
  StreamHandle stream = new_stream(true);
  OK(begin_capture(stream, mode));
  Status status = call(stream);
  if (status != expected) fprintf(stderr, "%s instead of %s\n", name(status), name(expected));
  CHECK(status == expected);
  CHECK(status_of(stream) == CaptureStatus::invalidated);
  FAILS(host_function(stream, [](void *) {}, nullptr), capture_invalidated);
  GraphHandle graph = nullptr;
  FAILS(end_capture(stream, &graph), capture_invalidated);
  CHECK(graph == nullptr && status_of(stream) == CaptureStatus::none);
}

TEST(calls_that_wait_or_allocate_break_a_global_capture) {
  under("lazy", [] {
    static EventHandle event;
    static StreamHandle other;
    static uint32_t *words, *pinned;
    event = new_event();
    other = new_stream();
    words = new_words(1);
    pinned = new_pinned_words(1);
    OK(record(event, other));
    OK(stream_synchronize(other));
    Status unsupported = Status::capture_unsupported;
    breaks(unsupported, [](StreamHandle) { return event_query(event); });
    breaks(unsupported, [](StreamHandle) { return event_synchronize(event); });
    breaks(unsupported, [](StreamHandle stream) { return stream_synchronize(stream); });
    breaks(unsupported, [](StreamHandle stream) { return stream_query(stream); });
    breaks(unsupported, [](StreamHandle) { return stream_query(other); });
    breaks(unsupported, [](StreamHandle) { return device_synchronize(); });
    breaks(unsupported, [](StreamHandle) {
      void *address = nullptr;
      return allocate(16, &address);
    });
    breaks(unsupported, [](StreamHandle) { return release(words); });
    breaks(unsupported, [](StreamHandle) { return copy(words, pinned, 4, CopyKind::any); });
    breaks(unsupported, [](StreamHandle stream) {
      uint32_t pageable = 0;
      return copy_async(words, &pageable, 4, CopyKind::any, stream);
    });
    breaks(unsupported, [](StreamHandle) {  // of any thread
      Status status = Status::success;
      std::thread([&] { status = event_query(event); }).join();
      return status;
    });
    breaks(Status::capture_implicit, [](StreamHandle) { return fill_async(words, 0, 4, 1, legacy_stream); });
    breaks(Status::capture_isolation, [](StreamHandle stream) {
      Status status = record(event, other);
      return status == Status::success ? stream_wait(stream, event) : status;
    });
    OK(device_synchronize());
  });
}

TEST(modes_and_threads_decide_what_breaks_a_capture) {
  under("lazy", [] {
    static EventHandle event;
    event = new_event();
    auto query_elsewhere = [](CaptureMode mode) {
      Status status = Status::success;
      std::thread([&] {
        OK(exchange_capture_mode(&mode));
        CHECK(mode == CaptureMode::global);
        status = event_query(event);
      }).join();
      return status;
    };
    StreamHandle stream = new_stream();
    GraphHandle graph = nullptr;
    OK(begin_capture(stream, CaptureMode::relaxed));
    OK(event_query(event));
    CHECK(query_elsewhere(CaptureMode::global) == Status::success);
    OK(end_capture(stream, &graph));
    OK(begin_capture(stream, CaptureMode::thread_local_));
    CHECK(query_elsewhere(CaptureMode::global) == Status::success);
    FAILS(event_query(event), capture_unsupported);
    FAILS(end_capture(stream, &graph), capture_invalidated);
    OK(begin_capture(stream, CaptureMode::global));
    CHECK(query_elsewhere(CaptureMode::relaxed) == Status::success);
    CHECK(query_elsewhere(CaptureMode::thread_local_) == Status::success);
    OK(end_capture(stream, &graph));
    OK(begin_capture(stream, CaptureMode::global));
    std::thread([&] { FAILS(end_capture(stream, &graph), capture_wrong_thread); }).join();
    OK(end_capture(stream, &graph));
  });
}

TEST(a_capture_ends_where_it_began_with_all_streams_joined) {
  under("lazy", [] {
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    GraphHandle graph = nullptr;
    FAILS(end_capture(a, &graph), invalid_value);
    FAILS(begin_capture(legacy_stream, CaptureMode::global), capture_unsupported);
    OK(begin_capture(a, CaptureMode::global));
    FAILS(begin_capture(a, CaptureMode::global), invalid_value);
    OK(record(event, a));
    OK(stream_wait(b, event));
    OK(host_function(b, [](void *) {}, nullptr));
    FAILS(end_capture(b, &graph), capture_unmatched);
    FAILS(end_capture(a, &graph), capture_unjoined);
    FAILS(event_query(event), captured_event);
    FAILS(stream_wait(a, event), captured_event);
    OK(record(event, a));
    OK(event_synchronize(event));
  });
}

TEST(captures_do_not_meet) {
  under("lazy", [] {
    StreamHandle a = new_stream(), b = new_stream();
    EventHandle event = new_event();
    GraphHandle graph = nullptr;
    OK(begin_capture(a, CaptureMode::relaxed));
    OK(begin_capture(b, CaptureMode::relaxed));
    OK(record(event, a));
    FAILS(stream_wait(b, event), capture_isolation);
    FAILS(end_capture(a, &graph), capture_invalidated);
    FAILS(end_capture(b, &graph), capture_invalidated);
  });
}

TEST(a_graph_whose_memory_is_gone_is_not_launched) {
  under("lazy", [] {
    uint32_t *words = new_words(1);
    StreamHandle stream = new_stream();
    GraphHandle graph = nullptr;
    OK(begin_capture(stream, CaptureMode::global));
    OK(fill_async(words, 1, 4, 1, stream));
    OK(end_capture(stream, &graph));
    OK(release(words));
    FAILS(launch_graph(graph, stream), invalid_value);
    REPORTS(1);
  });
}

TEST(a_record_that_a_capture_refuses_leaves_the_event_as_it_was) {
  under("lazy", [] {
    Log log;
    StreamHandle held = new_stream(), captured = new_stream(true);
    EventHandle event = new_event(), shared = nullptr;
    GraphHandle graph = nullptr;
    OK(create_event({false, true}, &shared));
    OK(hold(held));
    log.append(held, 'a');
    OK(record(event, held));
    OK(begin_capture(captured, CaptureMode::relaxed));
    FAILS(record(event, legacy_stream), capture_implicit);
    FAILS(end_capture(captured, &graph), capture_invalidated);
    OK(begin_capture(captured, CaptureMode::relaxed));
    FAILS(record(shared, legacy_stream), capture_implicit);
    FAILS(end_capture(captured, &graph), capture_invalidated);
    FAILS(event_query(event), not_ready);  // its first record is still pending
    OK(event_query(shared));               // there was no record
    OK(release_held(held));
    OK(event_synchronize(event));
    CHECK(log.text() == "a");
  });
}

TEST(each_launch_of_a_graph_writes_a_flag_at_its_own_place) {
  under_all([] {  // launches that are queued together; ThreadSanitizer looks at what they share
    uint32_t *flag = new_pinned_words(1);
    StreamHandle stream = new_stream(), other = new_stream();
    GraphHandle graph = nullptr;
    OK(begin_capture(stream, CaptureMode::global));
    OK(write_value(stream, flag, 1));
    OK(end_capture(stream, &graph));
    for (int i = 0; i < 100; i++) OK(launch_graph(graph, i % 2 == 0 ? stream : other));
    OK(device_synchronize());
    CHECK(__atomic_load_n(flag, __ATOMIC_SEQ_CST) == 1);
  });
  under("lazy",
        [] {
          uint32_t *flag = new_pinned_words(1), *pinned = new_pinned_words(1);
          StreamHandle stream = new_stream();
          EventHandle first = new_event();
          GraphHandle graph = nullptr;
          OK(begin_capture(stream, CaptureMode::global));
          OK(write_value(stream, flag, 1));
          OK(end_capture(stream, &graph));
          OK(launch_graph(graph, stream));
          OK(record(first, stream));
          OK(fill_async(pinned, 0, 4, 1, stream));
          OK(launch_graph(graph, stream));
          OK(event_synchronize(first));
          emulator_acquire(flag);  // of the first launch, which the fill comes after
          emulator_host_read(pinned, 4, "read");
          REPORTS(1);
        },
        {{"EMULATOR_KICK_MS", "0"}});
}

// Calls the runtime when it is destroyed, as the last owner of a tensor does.
struct Owner {
  ~Owner() { calls += device_count() == 2 ? 1 : 0; }
  static inline int calls = 0;
};

TEST(what_a_kernel_owns_may_call_the_runtime_when_it_is_destroyed) {
  under("lazy", [] {
    StreamHandle stream = new_stream();
    GraphHandle graph = nullptr;
    uint32_t *words = new_words(1);
    auto kernel = [] { return [owner = std::make_shared<Owner>()] {}; };
    FAILS(launch(stream, "kernel", {{words, 8}}, {}, kernel()), invalid_value);
    CHECK(Owner::calls == 1);
    OK(begin_capture(stream, CaptureMode::global));
    OK(launch(stream, "kernel", {}, {}, kernel()));
    OK(end_capture(stream, &graph));
    OK(destroy_graph(graph));
    CHECK(Owner::calls == 2);
    OK(begin_capture(stream, CaptureMode::global));
    OK(launch(stream, "kernel", {}, {}, kernel()));
    FAILS(device_synchronize(), capture_unsupported);
    FAILS(launch(stream, "kernel", {}, {}, kernel()), capture_invalidated);
    CHECK(Owner::calls == 3);
    FAILS(end_capture(stream, &graph), capture_invalidated);
    CHECK(Owner::calls == 4);
  });
}

TEST(a_global_capture_forbids_what_other_captures_allow) {
  under("lazy", [] {
    StreamHandle local = new_stream(), global = new_stream();
    EventHandle event = new_event();
    GraphHandle graph = nullptr;
    OK(begin_capture(local, CaptureMode::thread_local_));
    std::thread([&] {
      OK(begin_capture(global, CaptureMode::global));
      CaptureMode mode = CaptureMode::relaxed;
      OK(exchange_capture_mode(&mode));
      OK(event_query(event));  // a relaxed thread may, even with a capture of its own
      OK(end_capture(global, &graph));
      mode = CaptureMode::global;
      OK(exchange_capture_mode(&mode));
      OK(begin_capture(global, CaptureMode::global));
      FAILS(event_query(event), capture_unsupported);
      FAILS(end_capture(global, &graph), capture_invalidated);
    }).join();
    CHECK(status_of(local) == CaptureStatus::active);  // the thread broke its own capture and no other
    OK(end_capture(local, &graph));
  });
}
