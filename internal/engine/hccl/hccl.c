#include "hccl.h"

hccl_table hccl;

#define X(name, parameters, arguments) #name,
const char *const hccl_names[] = {HCCL_FUNCTIONS(X) "HcclGetErrorString", HCCL_FACADE};
#undef X

const size_t hccl_functions = sizeof hccl_names / sizeof *hccl_names;
