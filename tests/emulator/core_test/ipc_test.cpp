// Memory and events of other processes.
#include <sys/mman.h>
#include <sys/wait.h>

#include <csignal>
#include <cstring>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

// Two ends that pass bytes between the parent and its peer, which are processes of the same test.
class Pipe {
 public:
  Pipe() { CHECK(pipe(ends_) == 0); }
  template <class T>
  void send(const T &value) {
    CHECK(write(ends_[1], &value, sizeof value) == sizeof value);
  }
  template <class T>
  T receive() {
    T value;
    CHECK(read(ends_[0], &value, sizeof value) == sizeof value);
    return value;
  }

 private:
  int ends_[2];
};

// Runs an exporter and an importer as two processes that are not forks of a process with a runtime.
static void between(const std::function<void(Pipe &, Pipe &)> &exporter,
                    const std::function<void(Pipe &, Pipe &)> &importer) {
  under_all([&] {
    Pipe there, back;
    pid_t peer = fork();
    if (peer == 0) {
      bound_child();
      exporter(there, back);
      exit(0);
    }
    importer(there, back);
    int status = 0;
    CHECK(waitpid(peer, &status, 0) == peer);
    CHECK(WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL);
  });
}

static IpcHandle handle_of(void *base) {
  IpcHandle handle;
  OK(export_memory(base, &handle));
  return handle;
}

TEST(memory_of_another_process_is_the_same_memory) {
  between(
      [](Pipe &there, Pipe &back) {
        (void)new_words(10);  // so that the base is no multiple of a page
        uint32_t *words = new_words(2000);
        OK(fill(words, 7, 4, 2000));
        OK(device_synchronize());
        there.send(handle_of(words));
        CHECK(back.receive<int>() == 1);
        CHECK(word(words + 1999) == 8);
      },
      [](Pipe &there, Pipe &back) {
        void *address = nullptr, *again = nullptr;
        auto handle = there.receive<IpcHandle>();
        OK(import_memory(handle, &address));
        OK(import_memory(handle, &again));
        CHECK(address == again);
        auto *words = static_cast<uint32_t *>(address);
        CHECK(word(words) == 7 && word(words + 1999) == 7);
        MemoryAttributes attributes;
        OK(memory_attributes(words + 5, &attributes));
        CHECK(attributes.kind == MemoryKind::imported && attributes.base == address && attributes.size == 8000);
        StreamHandle stream = new_stream();
        OK(fill_async(words + 1999, 8, 4, 1, stream));
        FAILS(fill_async(words + 1999, 8, 4, 2, stream), invalid_value);
        OK(stream_synchronize(stream));
        back.send(1);
        FAILS(release(address), invalid_value);
        OK(close_memory(address));
        CHECK(word(words) == 7);  // there was a second import
        OK(close_memory(address));
        FAILS(close_memory(address), invalid_value);
        FAILS(fill_async(words, 8, 4, 1, stream), invalid_value);
      });
}

TEST(memory_is_mapped_at_a_reserved_place_also_by_its_exporter) {
  constexpr size_t size = 8192;
  auto reserve = [] {
    void *place = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    return static_cast<uint32_t *>(place);
  };
  between(
      [&](Pipe &there, Pipe &back) {
        (void)new_words(10);  // so that the first whole page is not where the allocation begins
        IpcHandle handle = handle_of(new_words((size + 4096) / 4));
        uint32_t *words = reserve();
        OK(map_memory(handle, words, size));
        OK(fill(words, 7, 4, size / 4));
        OK(device_synchronize());
        there.send(handle);
        CHECK(back.receive<int>() == 1);
        CHECK(word(words + 2047) == 8);
        OK(unmap_memory(words));
      },
      [&](Pipe &there, Pipe &back) {
        auto handle = there.receive<IpcHandle>();
        uint32_t *words = reserve();
        FAILS(map_memory(handle, words, size + 8192), invalid_value);
        FAILS(map_memory(handle, words, 100), invalid_value);
        OK(map_memory(handle, words, size));
        CHECK(word(words) == 7 && word(words + 2047) == 7);
        StreamHandle stream = new_stream();
        OK(fill_async(words + 2047, 8, 4, 1, stream));
        FAILS(fill_async(words + 2047, 8, 4, 2, stream), invalid_value);
        OK(stream_synchronize(stream));
        back.send(1);
        FAILS(close_memory(words), invalid_value);
        OK(unmap_memory(words));
        FAILS(unmap_memory(words), invalid_value);
        CHECK(mmap(words, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED);
      });
}

TEST(only_bases_are_exported_and_not_to_the_same_process) {
  under("lazy", [] {
    uint32_t *words = new_words(1000);
    IpcHandle handle;
    void *address = nullptr;
    FAILS(export_memory(words + 64, &handle), invalid_value);
    FAILS(export_memory(new_pinned_words(1), &handle), invalid_value);
    OK(export_memory(words, &handle));
    FAILS(import_memory(handle, &address), already_mapped);
    memset(&handle, 0, sizeof handle);
    FAILS(import_memory(handle, &address), invalid_value);
  });
}

TEST(imported_memory_outlives_its_exporter) {
  between(
      [](Pipe &there, Pipe &back) {
        uint32_t *words = new_words(1), *other = new_words(1);
        OK(fill(words, 7, 4, 1));
        OK(device_synchronize());
        there.send(handle_of(words));
        there.send(handle_of(other));
        CHECK(back.receive<int>() == 1);
        raise(SIGKILL);
      },
      [](Pipe &there, Pipe &back) {
        void *address = nullptr, *other = nullptr;
        OK(import_memory(there.receive<IpcHandle>(), &address));
        auto late = there.receive<IpcHandle>();
        back.send(1);
        siginfo_t information;
        CHECK(waitid(P_ALL, 0, &information, WEXITED | WNOWAIT) == 0);  // the exporter has ended
        // The dead process is still a zombie here: its number cannot have another process.
        CHECK(word(static_cast<uint32_t *>(address)) == 7);
        FAILS(import_memory(late, &other), peer_gone);
        OK(close_memory(address));
      });
}

TEST(memory_that_was_given_back_cannot_be_imported) {
  between(
      [](Pipe &there, Pipe &back) {
        uint32_t *words = new_words(1);
        IpcHandle handle = handle_of(words);
        OK(release(words));
        there.send(handle);
        CHECK(back.receive<int>() == 1);
      },
      [](Pipe &there, Pipe &back) {
        void *address = nullptr;
        FAILS(import_memory(there.receive<IpcHandle>(), &address), peer_gone);
        back.send(1);
      });
}

TEST(events_order_streams_of_two_processes) {
  between(
      [](Pipe &there, Pipe &back) {
        uint32_t *words = new_words(1);
        StreamHandle stream = new_stream();
        EventHandle event = nullptr;
        FAILS(create_event({true, true}, &event), invalid_value);  // such events have no timing
        OK(create_event({false, true}, &event));
        IpcHandle handle;
        OK(export_event(event, &handle));
        there.send(handle_of(words));
        there.send(handle);
        CHECK(back.receive<int>() == 1);  // the importer has seen an event without a record
        OK(hold(stream));
        OK(fill_async(words, 7, 4, 1, stream));
        OK(record(event, stream));
        there.send(2);
        CHECK(back.receive<int>() == 3);  // the importer waits
        OK(fill_async(words, 8, 4, 1, stream));
        OK(record(event, stream));  // does not move its wait
        OK(release_held(stream));
        OK(event_synchronize(event));
        there.send(4);
        CHECK(back.receive<int>() == 5);  // the importer has recorded
        OK(stream_wait(stream, event));
        OK(stream_synchronize(stream));
        OK(destroy_event(event));
      },
      [](Pipe &there, Pipe &back) {
        void *address = nullptr;
        OK(import_memory(there.receive<IpcHandle>(), &address));
        EventHandle event = nullptr;
        OK(import_event(there.receive<IpcHandle>(), &event));
        OK(event_query(event));
        StreamHandle stream = new_stream();
        OK(stream_wait(stream, event));
        OK(stream_query(stream));
        back.send(1);
        CHECK(there.receive<int>() == 2);
        FAILS(event_query(event), not_ready);
        FAILS(event_synchronize(event, 10), timeout);
        OK(stream_wait(stream, event));
        uint32_t *pinned = new_pinned_words(1);
        OK(copy_async(pinned, address, 4, CopyKind::any, stream));
        FAILS(stream_synchronize(stream, 10), timeout);
        back.send(3);
        OK(stream_synchronize(stream));
        CHECK(*pinned == 7 || *pinned == 8);
        OK(event_synchronize(event));
        CHECK(there.receive<int>() == 4);
        CHECK(word(static_cast<uint32_t *>(address)) == 8);
        IpcHandle handle;
        FAILS(export_event(event, &handle), invalid_value);
        OK(record(event, stream));
        back.send(5);
        OK(stream_synchronize(stream));
      });
}

TEST(an_event_of_a_process_that_has_ended_stays_as_it_was) {
  between(
      [](Pipe &there, Pipe &back) {
        StreamHandle stream = new_stream();
        EventHandle event = nullptr;
        OK(create_event({false, true}, &event));
        OK(hold(stream));
        OK(record(event, stream));
        IpcHandle handle;
        OK(export_event(event, &handle));
        there.send(handle);
        CHECK(back.receive<int>() == 1);
        raise(SIGKILL);
      },
      [](Pipe &there, Pipe &back) {
        auto handle = there.receive<IpcHandle>();
        EventHandle event = nullptr, late = nullptr;
        OK(import_event(handle, &event));
        back.send(1);
        siginfo_t information;
        CHECK(waitid(P_ALL, 0, &information, WEXITED | WNOWAIT) == 0);
        FAILS(event_query(event), not_ready);
        FAILS(event_synchronize(event, 10), timeout);
        OK(import_event(handle, &late));  // the table of the process is mapped already
        FAILS(event_query(late), not_ready);
      });
}

// The shared words have room for 64 records of an event: newer ones must not stand for one that is pending.
TEST(a_wait_is_for_its_record_however_many_follow) {
  between(
      [](Pipe &there, Pipe &back) {
        StreamHandle held = new_stream(), other = new_stream();
        EventHandle event = nullptr;
        OK(create_event({false, true}, &event));
        IpcHandle handle;
        OK(export_event(event, &handle));
        there.send(handle);
        OK(hold(held));
        OK(record(event, held));
        there.send(1);
        CHECK(back.receive<int>() == 2);  // the importer waits for the first record
        for (int i = 0; i < 200; i++) OK(record(event, other));
        OK(run_all());
        there.send(3);
        CHECK(back.receive<int>() == 4);
        OK(release_held(held));
        OK(device_synchronize());
        CHECK(back.receive<int>() == 5);
      },
      [](Pipe &there, Pipe &back) {
        EventHandle event = nullptr;
        OK(import_event(there.receive<IpcHandle>(), &event));
        StreamHandle stream = new_stream();
        CHECK(there.receive<int>() == 1);
        OK(stream_wait(stream, event));
        back.send(2);
        CHECK(there.receive<int>() == 3);
        OK(run_all());
        FAILS(stream_query(stream), not_ready);
        back.send(4);
        OK(stream_synchronize(stream));
        OK(event_synchronize(event));
        back.send(5);
      });
}

TEST(a_handle_that_was_damaged_is_refused) {
  between(
      [](Pipe &there, Pipe &back) {
        there.send(handle_of(new_words(1)));
        CHECK(back.receive<int>() == 1);
      },
      [](Pipe &there, Pipe &back) {
        auto handle = there.receive<IpcHandle>();
        void *address = nullptr;
        // Offset and size of the memory, as Handle of ipc.cpp has them.
        for (size_t place : {size_t{32}, size_t{40}}) {
          IpcHandle damaged = handle;
          memset(damaged.bytes + place, 0x7f, 8);
          FAILS(import_memory(damaged, &address), invalid_value);
        }
        OK(import_memory(handle, &address));
        OK(close_memory(address));
        back.send(1);
      });
}

TEST(events_of_a_process_that_has_ended_cannot_be_imported) {
  between(
      [](Pipe &there, Pipe &back) {
        EventHandle event = nullptr;
        OK(create_event({false, true}, &event));
        IpcHandle handle;
        OK(export_event(event, &handle));
        there.send(handle);
        OK(destroy_event(event));
        there.send(1);
        CHECK(back.receive<int>() == 2);
        raise(SIGKILL);
      },
      [](Pipe &there, Pipe &back) {
        auto handle = there.receive<IpcHandle>();
        CHECK(there.receive<int>() == 1);
        EventHandle event = nullptr;
        FAILS(import_event(handle, &event), peer_gone);  // it was destroyed
        back.send(2);
        siginfo_t information;
        CHECK(waitid(P_ALL, 0, &information, WEXITED | WNOWAIT) == 0);
        FAILS(import_event(handle, &event), peer_gone);
      });
}

TEST(streams_of_two_processes_meet_by_words_of_registered_memory) {
  void *page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(page != MAP_FAILED);
  auto *flags = static_cast<uint32_t *>(page);
  between(
      [=](Pipe &there, Pipe &back) {
        __atomic_store_n(flags, 0u, __ATOMIC_SEQ_CST);
        uint32_t *words = new_words(2000);
        OK(register_host(page, 4096));
        there.send(handle_of(words));
        StreamHandle stream = new_stream();
        OK(fill_async(words, 7, 4, 2000, stream));
        OK(write_value(stream, flags, 1));
        OK(wait_value(stream, flags + 32, 1, Comparison::greater_or_equal));
        OK(fill_async(words, 8, 4, 2000, stream));
        OK(stream_synchronize(stream));
        there.send(1);
        CHECK(back.receive<int>() == 1);
      },
      [=](Pipe &there, Pipe &back) {
        void *imported = nullptr;
        OK(import_memory(there.receive<IpcHandle>(), &imported));
        uint32_t *copy = new_words(2000);
        FAILS(wait_value(new_stream(), flags, 1, Comparison::greater_or_equal), invalid_value);
        OK(register_host(page, 4096));
        StreamHandle stream = new_stream();
        OK(wait_value(stream, flags, 1, Comparison::greater_or_equal));
        OK(copy_async(copy, imported, 8000, CopyKind::device_to_device, stream));
        OK(write_value(stream, flags + 32, 1));
        OK(stream_synchronize(stream));
        CHECK(word(copy) == 7 && word(copy + 1999) == 7);
        CHECK(there.receive<int>() == 1);
        CHECK(word(static_cast<uint32_t *>(imported)) == 8);
        __atomic_store_n(flags + 32, 0u, __ATOMIC_SEQ_CST);
        back.send(1);
      });
}
