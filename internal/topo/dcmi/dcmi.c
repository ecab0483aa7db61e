#include "dcmi.h"

dcmi_table dcmi;

#define X(name, parameters, arguments) #name,
const char *const dcmi_names[] = {DCMI_FUNCTIONS(X)};
#undef X

const size_t dcmi_functions = sizeof dcmi_names / sizeof *dcmi_names;
