#include "acl.h"

acl_table acl;

#define X(name, parameters, arguments) #name,
const char *const acl_names[] = {ACL_NEEDED(X) ACL_OPTIONAL(X)};
static const char *const needed[] = {ACL_NEEDED(X)};
#undef X

const size_t acl_functions = sizeof acl_names / sizeof *acl_names, acl_needed = sizeof needed / sizeof *needed;
