// A tiny frame for the emulator's tests: TEST(name) { ... CHECK(condition); } and one run_tests() in main.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace emulator_test {

struct Test {
  const char *name;
  void (*run)();
};

inline std::vector<Test> &tests() {
  static std::vector<Test> list;
  return list;
}

inline bool add_test(const char *name, void (*run)()) {
  tests().push_back({name, run});
  return true;
}

// Runs all tests, or those whose names are arguments. A CHECK that does not hold ends the program.
inline int run_tests(int argc, char **argv) {
  int ran = 0;
  for (const Test &test : tests()) {
    bool chosen = argc == 1;
    for (int i = 1; i < argc; i++) chosen = chosen || strcmp(argv[i], test.name) == 0;
    if (!chosen) continue;
    printf("%s\n", test.name);
    fflush(stdout);
    test.run();
    ran++;
  }
  printf("%d tests passed\n", ran);
  return ran ? 0 : 1;
}

}  // namespace emulator_test

#define TEST(name)                                                              \
  static void test_##name();                                                    \
  static const bool added_##name = emulator_test::add_test(#name, test_##name); \
  static void test_##name()

#define CHECK(condition)                                                             \
  do {                                                                               \
    if (!(condition)) {                                                              \
      fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                       \
    }                                                                                \
  } while (0)

// CHECK_REPORTS compares the number of reports, and shows them if it is another one.
#define CHECK_REPORTS(checker, expected)                                                              \
  do {                                                                                                \
    if ((checker).count() != static_cast<size_t>(expected)) {                                         \
      fprintf(stderr, "%s:%d: %zu reports instead of %zu\n%s", __FILE__, __LINE__, (checker).count(), \
              static_cast<size_t>(expected), (checker).text().c_str());                               \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)
