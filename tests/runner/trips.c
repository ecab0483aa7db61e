/* trips.c: see trips.h. */
#include "trips.h"

uint64_t unit_bytes(const trip *t, uint32_t u) {
  uint64_t at = (uint64_t)u * t->unit;
  return t->bytes - at < t->unit ? t->bytes - at : t->unit;
}

uint32_t place(const trip *t, uint32_t u) { return t->window ? u % t->window : u; }

trip *new_trip(uint64_t bytes, uint64_t unit, uint32_t window, uint64_t seed) {
  trip *t = aligned_alloc(SCR_LINE, (sizeof *t + SCR_LINE - 1) & ~(size_t)(SCR_LINE - 1));
  memset(t, 0, sizeof *t);
  t->bytes = bytes;
  t->unit = unit;
  t->n = (uint32_t)(bytes == 0 ? 1 : (bytes + unit - 1) / unit);
  CHECK(t->n <= MOST_UNITS);
  t->window = window;
  t->random = seed | 1;
  uint32_t room = window && window < t->n ? window : t->n;
  t->from = calloc(1, bytes + 1);
  t->to = calloc(1, bytes + 1);
  t->input = calloc(room, unit);
  t->output = calloc(room, unit);
  for (uint32_t u = 0; u < t->n; u++) {
    t->in[u] = (sagecomm_segment){t->input + place(t, u) * unit, unit_bytes(t, u)};
    t->out[u] = (sagecomm_segment){t->output + place(t, u) * unit, unit_bytes(t, u)};
  }
  return t;
}

void free_trip(trip *t) {
  free(t->from);
  free(t->to);
  free(t->input);
  free(t->output);
  free(t);
}

sagecomm_op operation(const rank *r, trip *t, int kind) {
  next_gate[r->rank] = (scr_gate){.words = &t->words, .window = t->window, .inputs = t->n, .outputs = t->n};
  return (sagecomm_op){.kind = (uint8_t)kind,
                       .dtype = SAGECOMM_INT32,
                       .device_type = 1,
                       .n_in = t->n,
                       .n_out = t->n,
                       .in = t->in,
                       .out = t->out};
}

uint64_t chunk_of(const rank *r, uint64_t bytes) {
  trip *t = new_trip(bytes, bytes, 0, 1);
  sagecomm_error err;
  atomic_store(&t->words.input_ready, SCR_GATE_MAX);
  sagecomm_op op = operation(r, t, SAGECOMM_ALL_REDUCE);
  next_gate[r->rank].inputs = 0;
  CHECK(call(r, &op, &err) == SAGECOMM_OK);
  const scr_group *g = r->beside->group;
  const scr_program *p = scr_cache_find(g, scr_cache_key(g, &op, bytes));
  CHECK(p != NULL);
  free_trip(t);
  return p->chunk;
}
