// Device memory, pinned memory and their rules.
#include <sys/wait.h>

#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

static const Environment little = {{"EMULATOR_MEMORY", "1M"}};

static bool contains(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }

TEST(allocations_are_aligned_to_256_bytes_and_to_no_more) {
  under("lazy", [] {
    bool only_256 = false;
    for (int i = 0; i < 8; i++) {
      void *address = nullptr;
      OK(allocate(100, &address));
      CHECK(reinterpret_cast<uintptr_t>(address) % 256 == 0);
      only_256 = only_256 || reinterpret_cast<uintptr_t>(address) % 512 != 0;
    }
    CHECK(only_256);
  });
}

TEST(the_cpu_cannot_touch_device_memory) {
  for (bool write : {false, true}) {
    pid_t child = fork();
    if (child == 0) {
      signal(SIGSEGV, [](int) { _exit(7); });
      volatile uint32_t *words = new_words(4);
      if (write)
        words[0] = 1;
      else
        (void)words[0];
      _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 7);
  }
}

TEST(fresh_memory_is_not_zero) {
  under("lazy", [] { CHECK(word(new_words(1)) != 0 && *new_pinned_words(1) != 0); });
}

TEST(memory_has_a_base_and_a_size) {
  under("lazy", [] {
    OK(set_device(1));
    auto *device = reinterpret_cast<char *>(new_words(10));
    auto *pinned = reinterpret_cast<char *>(new_pinned_words(10));
    static char pageable[64], registered[64];
    OK(register_host(registered, sizeof registered));
    MemoryAttributes found;
    OK(memory_attributes(device + 39, &found));
    CHECK(found.kind == MemoryKind::device && found.device == 1 && found.base == device && found.size == 40);
    OK(memory_attributes(device + 40, &found));
    CHECK(found.kind == MemoryKind::pageable && found.base == nullptr);
    OK(memory_attributes(pinned + 8, &found));
    CHECK(found.kind == MemoryKind::pinned && found.base == pinned && found.size == 40);
    OK(memory_attributes(registered + 63, &found));
    CHECK(found.kind == MemoryKind::registered && found.base == registered && found.size == 64);
    OK(memory_attributes(pageable, &found));
    CHECK(found.kind == MemoryKind::pageable);
  });
}

TEST(each_device_has_a_budget) {
  under(
      "lazy",
      [] {
        void *first = nullptr, *second = nullptr;
        size_t free = 0, total = 0;
        OK(memory_info(0, &free, &total));
        CHECK(total == 1 << 20 && free == total);
        OK(allocate(1 << 20, &first));
        FAILS(allocate(1, &second), out_of_memory);
        OK(memory_info(0, &free, &total));
        CHECK(free == 0);
        FAILS(allocate(SIZE_MAX, &second), out_of_memory);
        OK(set_device(1));
        OK(allocate(1 << 20, &second));
        OK(release(first));  // of another device than the current one
        OK(set_device(0));
        for (int i = 0; i < 20; i++) {  // through the quarantine
          OK(allocate(1 << 20, &first));
          OK(release(first));
        }
        FAILS(memory_info(2, &free, &total), invalid_device);
      },
      little);
}

TEST(only_bases_are_given_back) {
  under("lazy", [] {
    char *device = reinterpret_cast<char *>(new_words(100)), *pinned = reinterpret_cast<char *>(new_pinned_words(100));
    FAILS(release(device + 256), invalid_value);
    FAILS(release_host(pinned + 64), invalid_value);
    FAILS(release(pinned), invalid_value);
    FAILS(release_host(device), invalid_value);
    FAILS(unregister_host(pinned), not_registered);
    OK(release(device));
    OK(release_host(pinned));
    FAILS(release(device), invalid_value);
    FAILS(release_host(pinned), invalid_value);
    OK(release(nullptr));
    OK(release_host(nullptr));
    void *nothing = device;
    OK(allocate(0, &nothing));
    CHECK(nothing == nullptr);
  });
}

TEST(host_memory_is_registered_once) {
  under("lazy", [] {
    static char memory[1024];
    OK(register_host(memory + 256, 512));
    FAILS(register_host(memory + 256, 512), already_registered);
    FAILS(register_host(memory, 257), already_registered);
    FAILS(register_host(memory + 767, 1), already_registered);
    OK(register_host(memory, 256));
    OK(register_host(memory + 768, 256));
    FAILS(unregister_host(memory + 1), not_registered);
    OK(unregister_host(memory + 256));
    FAILS(unregister_host(memory + 256), not_registered);
    FAILS(register_host(nullptr, 8), invalid_value);
  });
}

TEST(giving_memory_back_waits_for_the_device) {
  under_all([] {
    Log log;
    uint32_t *words = new_words(4);
    StreamHandle stream = new_stream();
    OK(launch(stream, "kernel", {}, {{words, 16}}, [&log, words] {
      (void)words;
      log.add('a');
    }));
    OK(release(words));
    CHECK(log.text() == "a");
    REPORTS(0);
  });
}

// As runtimes do whose free does not synchronise.
static void free_at_once() {
  Options options;
  options.free_synchronizes = false;
  OK(configure(options));
}

TEST(memory_that_queued_work_uses_is_reported_when_it_is_given_back) {
  under_all([] {
    free_at_once();
    uint32_t *words = new_words(4), *pinned = new_pinned_words(4), *unused = new_words(4);
    StreamHandle stream = new_stream();
    OK(hold(stream));
    OK(copy_async(words, pinned, 16, CopyKind::any, stream));
    OK(release(unused));
    REPORTS(0);
    OK(release(words));
    CHECK(contains(report_text(),
                   "of device 0 (16 bytes) is given back while 'copy from pinned to device memory, 16 "
                   "bytes' on stream 1 of device 0 still uses it"));
    size_t before = report_count();
    OK(release_host(pinned));
    CHECK(report_count() > before);
    CHECK(contains(report_text(), "EMULATOR_SCHEDULE="));
    OK(release_held(stream));
    OK(stream_synchronize(stream));
  });
}

TEST(work_on_memory_that_was_unregistered_does_not_run) {
  under_all([] {
    free_at_once();
    static uint32_t registered[4];
    OK(register_host(registered, sizeof registered));
    StreamHandle stream = new_stream();
    OK(hold(stream));
    OK(fill_async(registered, 7, 4, 4, stream));
    OK(unregister_host(registered));
    CHECK(report_count() > 0);
    OK(release_held(stream));
    OK(stream_synchronize(stream));
    CHECK(registered[0] == 0);
  });
}

TEST(a_write_to_memory_that_was_freed_is_reported_when_it_leaves_the_quarantine) {
  under_all(
      [] {
        void *first = nullptr;
        OK(allocate(4096, &first));
        void *view = host_view(first);
        OK(release(first));
        static_cast<char *>(view)[100] = 1;  // as a kernel does that kept the address
        for (int i = 0; i < 200; i++) {
          void *address = nullptr;
          OK(allocate(4096, &address));
          OK(release(address));
        }
        REPORTS(1);
        CHECK(contains(report_text(),
                       "allocation 1 of device 0 (4096 bytes) was written after it was freed, at offset 100"));
        reset_reports();
        REPORTS(0);
      },
      little);
}

TEST(freed_memory_is_not_given_out_again_at_once) {
  under(
      "lazy",
      [] {
        void *first = nullptr, *second = nullptr;
        OK(allocate(4096, &first));
        OK(release(first));
        OK(allocate(4096, &second));
        CHECK(first != second);
      },
      little);
}

TEST(launches_name_memory_that_exists) {
  under("lazy", [] {
    uint32_t *words = new_words(4);
    StreamHandle stream = new_stream();
    static char pageable[16];
    FAILS(launch(stream, "kernel", {{words, 17}}, {}, [] {}), invalid_value);
    OK(launch(stream, "kernel", {{words, 16}, {pageable, 16}}, {}, [] {}));
    OK(stream_synchronize(stream));
    OK(release(words));
    FAILS(launch(stream, "kernel", {{words, 16}}, {}, [] {}), invalid_value);
  });
}

TEST(unregistering_at_once_waits_for_the_task_that_runs) {
  under_all(
      [] {
        free_at_once();
        static std::atomic<bool> began{false}, ended{false};
        static uint32_t registered[4];
        OK(register_host(registered, sizeof registered));
        StreamHandle stream = new_stream();
        // Another thread queues: the eager schedule runs the kernel within the call.
        std::thread other([&] {
          OK(launch(stream, "kernel", {}, {{registered, 16}}, [] {
            began = true;
            // The report comes before the wait.
            while (emulator::report_count() == 0) std::this_thread::yield();
            for (int i = 0; i < 1000; i++) std::this_thread::yield();
            registered[0] = 7;
            ended = true;
          }));
          OK(stream_synchronize(stream));
        });
        while (!began) std::this_thread::yield();
        OK(unregister_host(registered));
        CHECK(ended && registered[0] == 7);
        other.join();
        CHECK(contains(report_text(), "is given back while 'kernel' on stream 1 of device 0 still uses it"));
      },
      {{"EMULATOR_KICK_MS", "5"}});
}

TEST(bytes_of_each_kind_are_counted) {
  under("lazy", [] {
    std::vector<unsigned char> own(4096);
    void *first = nullptr, *second = nullptr, *device = nullptr;
    OK(allocate_host(1000, &first));
    OK(allocate_host(500, &second));
    OK(release_host(first));
    OK(register_host(own.data(), own.size()));
    OK(allocate(300, &device));
    CHECK(emulator_bytes("pinned") == 500 && emulator_most_bytes("pinned") == 1500);
    CHECK(emulator_bytes("registered") == own.size() && emulator_bytes("device") == 300);
    OK(unregister_host(own.data()));
    OK(release(device));
    CHECK(emulator_bytes("registered") == 0 && emulator_most_bytes("registered") == own.size());
    CHECK(emulator_bytes("device") == 0 && emulator_bytes("imported") == 0 && emulator_bytes("unknown") == 0);
  });
}
