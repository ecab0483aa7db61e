#include "cnrt.h"

#include <stdlib.h>

#include "../../runner/annotate.h"

cnrt_table cnrt;

#define X(name, parameters, arguments) #name,
const char *const cnrt_names[] = {CNRT_FUNCTIONS(X)};
#undef X

const size_t cnrt_functions = sizeof cnrt_names / sizeof *cnrt_names;

typedef struct store {
  uint32_t *word;
  uint32_t value;
} store;

/* Calls nothing of the runtime, as a host function must not, and waits for nothing. */
static void do_store(void *argument) {
  const store s = *(store *)argument;
  free(argument);
  scr_note_stored(s.word, s.value);
  __atomic_store_n(s.word, s.value, __ATOMIC_RELEASE);
}

int32_t cnrt_store(uintptr_t queue, uint32_t *word, uint32_t value) {
  store *s = malloc(sizeof *s);
  if (s == NULL) return 100010; /* cnrtErrorSysNoMem */
  *s = (store){word, value};
  int32_t rc = call_cnrtInvokeHostFunc(queue, do_store, s);
  if (rc != 0) free(s);
  return rc;
}
