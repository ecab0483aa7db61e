#include "check.hpp"

int main(int argc, char **argv) { return emulator_test::run_tests(argc, argv); }
