#include "cndev.h"

cndev_table cndev;

#define X(name, parameters, arguments) #name,
const char *const cndev_names[] = {CNDEV_FUNCTIONS(X)};
#undef X

const size_t cndev_functions = sizeof cndev_names / sizeof *cndev_names;
