#include "cncl.h"

cncl_table cncl;

#define X(name, parameters, arguments) #name,
const char *const cncl_names[] = {CNCL_FUNCTIONS(X) "cnclGetErrorStr", CNCL_FACADE};
#undef X

const size_t cncl_functions = sizeof cncl_names / sizeof *cncl_names;
