// Copies and fills.
#include <cstring>
#include <numeric>
#include <vector>

#include "bed.hpp"

using namespace emulator;
using namespace emulator_test;

TEST(a_copy_reads_its_source_when_it_runs) {
  under_all([] {
    uint32_t *pinned = new_pinned_words(1), *device = new_words(1);
    StreamHandle stream = new_stream();
    OK(hold(stream));
    __atomic_store_n(pinned, 1U, __ATOMIC_SEQ_CST);
    OK(copy_async(device, pinned, 4, CopyKind::host_to_device, stream));
    __atomic_store_n(pinned, 2U, __ATOMIC_SEQ_CST);  // before the copy has run: the wrong order of a broken program
    OK(release_held(stream));
    OK(stream_synchronize(stream));
    CHECK(word(device) == 2);
  });
}

TEST(a_copy_from_pageable_memory_has_read_it_when_the_call_returns) {
  under_all([] {
    uint32_t value = 1, *device = new_words(1);
    StreamHandle stream = new_stream();
    OK(hold(stream));
    OK(copy_async(device, &value, 4, CopyKind::host_to_device, stream));
    value = 2;
    OK(release_held(stream));
    OK(stream_synchronize(stream));
    CHECK(word(device) == 1);
  });
}

TEST(a_copy_to_pageable_memory_is_complete_when_the_call_returns) {
  under_all([] {
    uint32_t value = 0, *device = new_words(1);
    StreamHandle stream = new_stream();
    OK(fill_async(device, 9, 4, 1, stream));
    OK(copy_async(&value, device, 4, CopyKind::device_to_host, stream));
    CHECK(value == 9);
  });
}

TEST(a_copy_to_pinned_memory_is_asynchronous) {
  under_all([] {
    uint32_t *pinned = new_pinned_words(1), *device = new_words(1);
    StreamHandle stream = new_stream();
    *pinned = 1;
    OK(hold(stream));
    OK(fill_async(device, 9, 4, 1, stream));
    OK(copy_async(pinned, device, 4, CopyKind::device_to_host, stream));
    CHECK(*pinned == 1);
    OK(release_held(stream));
    OK(stream_synchronize(stream));
    CHECK(*pinned == 9);
  });
}

TEST(synchronous_copies_go_in_all_directions) {
  under_all([] {
    std::vector<uint32_t> out(1000), back(1000);
    std::iota(out.begin(), out.end(), 1U);
    size_t bytes = out.size() * 4;
    uint32_t *pinned = new_pinned_words(1000), *first = new_words(1000);
    OK(set_device(1));
    uint32_t *second = new_words(1000);
    OK(copy(pinned, out.data(), bytes, CopyKind::host_to_host));
    CHECK(memcmp(pinned, out.data(), bytes) == 0);
    OK(copy(first, pinned, bytes, CopyKind::host_to_device));
    OK(copy(second, first, bytes, CopyKind::device_to_device));
    OK(copy(back.data(), second, bytes, CopyKind::any));
    CHECK(back == out);
    OK(copy(back.data(), second + 1000, 0, CopyKind::any));
  });
}

TEST(a_synchronous_copy_comes_after_blocking_streams_only) {
  under_all([] {
    uint32_t *device = new_words(1), value = 0;
    StreamHandle blocking = new_stream(true), other = new_stream(false);
    OK(fill_async(device, 1, 4, 1, blocking));
    OK(hold(other));
    OK(fill_async(device, 2, 4, 1, other));
    OK(copy(&value, device, 4, CopyKind::any));
    CHECK(value == 1);
    OK(release_held(other));
    OK(stream_synchronize(other));
  });
}

TEST(operands_are_what_the_caller_says) {
  under("lazy", [] {
    uint32_t pageable = 0, *device = new_words(4), *pinned = new_pinned_words(4);
    StreamHandle stream = new_stream();
    FAILS(copy_async(device, &pageable, 4, CopyKind::device_to_device, stream), invalid_value);
    FAILS(copy_async(device, device, 4, CopyKind::device_to_host, stream), invalid_value);
    FAILS(copy_async(pinned, &pageable, 4, CopyKind::host_to_device, stream), invalid_value);
    FAILS(copy_async(&pageable, pinned, 4, CopyKind::device_to_host, stream), invalid_value);
    FAILS(copy_async(device, pinned, 4, CopyKind::host_to_host, stream), invalid_value);
    FAILS(copy_async(device + 3, pinned, 8, CopyKind::any, stream), invalid_value);  // beyond the allocation
    FAILS(copy_async(device, pinned + 3, 8, CopyKind::any, stream), invalid_value);
    FAILS(copy_async(device, pinned, 4, CopyKind::any, reinterpret_cast<StreamHandle>(0x1000)), invalid_handle);
    OK(copy_async(device + 2, pinned + 2, 8, CopyKind::any, stream));
    OK(stream_synchronize(stream));
  });
}

TEST(a_skin_may_refuse_asynchronous_copies_between_hosts) {
  under("lazy", [] {
    Options options;
    options.async_host_to_host = false;
    OK(configure(options));
    uint32_t *pinned = new_pinned_words(2);
    StreamHandle stream = new_stream();
    FAILS(copy_async(pinned, pinned + 1, 4, CopyKind::host_to_host, stream), not_supported);
    OK(copy(pinned, pinned + 1, 4, CopyKind::host_to_host));
  });
}

TEST(copies_between_hosts_are_complete_when_the_call_returns) {
  under_all([] {
    uint32_t *pinned = new_pinned_words(2);
    pinned[0] = 0;
    pinned[1] = 5;
    OK(copy_async(pinned, pinned + 1, 4, CopyKind::host_to_host, new_stream()));
    CHECK(pinned[0] == 5);
  });
}

TEST(copies_of_rows_have_pitches) {
  under_all([] {
    unsigned char from[5 * 8], to[5 * 7];
    std::iota(from, from + sizeof from, static_cast<unsigned char>(1));
    memset(to, 0, sizeof to);
    auto *device = reinterpret_cast<unsigned char *>(new_words(3 * 5));
    StreamHandle stream = new_stream();
    OK(fill_async(device, 0xEE, 1, 60, stream));
    OK(copy_2d_async({device, 12, from, 8, 6, 5}, CopyKind::host_to_device, stream));
    OK(copy_2d_async({to, 7, device, 12, 6, 5}, CopyKind::device_to_host, stream));
    for (size_t row = 0; row < 5; row++) {
      CHECK(memcmp(to + row * 7, from + row * 8, 6) == 0);
      CHECK(to[row * 7 + 6] == 0);
    }
    FAILS(copy_2d_async({device, 5, from, 8, 6, 5}, CopyKind::any, stream), invalid_value);
    FAILS(copy_2d_async({device, 12, from, 8, 6, 6}, CopyKind::any, stream), invalid_value);  // a row too many
    OK(copy_2d({device, 12, from, 8, 6, 5}, CopyKind::any));
  });
}

TEST(fills_have_elements_of_one_two_and_four_bytes) {
  under_all([] {
    uint32_t *device = new_words(4), back[4];
    StreamHandle stream = new_stream();
    OK(fill_async(device, 0, 4, 4, stream));
    OK(fill_async(device, 0x1234AB, 1, 3, stream));
    OK(fill_async(device + 1, 0x12345678, 2, 1, stream));
    OK(fill_async(device + 2, 0x12345678, 4, 1, stream));
    OK(copy_async(back, device, sizeof back, CopyKind::any, stream));
    CHECK(back[0] == 0x00ABABAB && back[1] == 0x00005678 && back[2] == 0x12345678 && back[3] == 0);
    FAILS(fill_async(device, 0, 3, 1, stream), invalid_value);
    FAILS(fill_async(reinterpret_cast<char *>(device) + 2, 0, 4, 1, stream), invalid_value);
    FAILS(fill_async(device, 0, 4, 5, stream), invalid_value);
    FAILS(fill_async(device, 0, 4, SIZE_MAX / 2, stream), invalid_value);
    FAILS(fill_async(back, 0, 4, 1, stream), invalid_value);
    OK(fill(device, 1, 4, 4));
    OK(device_synchronize());
    CHECK(word(device + 3) == 1);
  });
}
