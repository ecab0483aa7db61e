/* threads_test.c: the runner with ranks as threads, for AddressSanitizer and ThreadSanitizer: random sequences of
 * collectives and p2p operations, synchronous and asynchronous, checked against what they must give; then the scenarios of
 * scenarios.h. Usage: threads_test SEED ROUNDS [SCENARIO] */
#include <sched.h>

#include "fusing.h"
#include "scenarios.h"

#define MAX_ELEMENTS 20000

static int size;

static int32_t value(int rank, uint64_t op, uint64_t i) { return (int32_t)(rank * 7919 + op * 104729 + i * 31); }

typedef struct pending {
  sagecomm_work work;
  uint64_t op;
  int kind, root;
  uint32_t n;
  int32_t *in, *out;
  _Atomic int *done;
} pending;

static void on_done(void *ctx, int32_t status, const sagecomm_error *err) {
  (void)err;
  CHECK(status == SAGECOMM_OK);
  atomic_fetch_add((_Atomic int *)ctx, 1);
}

static void verify(const rank *r, const pending *p) {
  for (uint32_t i = 0; i < p->n; i++) {
    int32_t sum = 0;
    for (int q = 0; q < size; q++) sum = (int32_t)((uint32_t)sum + (uint32_t)value(q, p->op, i));
    switch (p->kind) {
      case SAGECOMM_ALL_REDUCE:
        CHECK(p->out[i] == sum);
        break;
      case SAGECOMM_REDUCE:
        CHECK(p->out[i] == (r->rank == p->root ? sum : -1));
        break;
      case SAGECOMM_BROADCAST:
        CHECK(p->out[i] == value(p->root, p->op, i));
        break;
      case SAGECOMM_ALL_GATHER:
        for (int q = 0; q < size; q++) CHECK(p->out[(uint32_t)q * p->n + i] == value(q, p->op, i));
        break;
      default:
        break;
    }
  }
}

static void finish(const rank *r, pending *p, int how) {
  sagecomm_error err;
  if (p->work) {
    if (how == 0) {
      while (scr_wait(p->work, 10 * 1000000, &err) == SAGECOMM_PENDING) continue;
      CHECK(scr_wait(p->work, 0, &err) == SAGECOMM_OK);
    } else { /* the engine finishes it */
      int32_t status = scr_on_done(p->work, on_done, p->done, &err);
      if (status == SAGECOMM_PENDING) {
        while (atomic_load(p->done) == 0) sched_yield();
      } else {
        CHECK(status == SAGECOMM_OK);
      }
    }
    scr_release(p->work);
  }
  verify(r, p);
  free(p->in);
  free(p->out);
  free((void *)p->done);
}

/* Every rank sends to the next and receives from the one before, tags crossed. */
static void exchange(const rank *r, uint64_t op, uint32_t n) {
  int to = (r->rank + 1) % size, from = (r->rank + size - 1) % size;
  int32_t *out[2], *in[2];
  sagecomm_work w[4];
  sagecomm_error err;
  for (int i = 0; i < 2; i++) {
    out[i] = malloc(n * 4 + 4);
    in[i] = malloc(n * 4 + 4);
    for (uint32_t k = 0; k < n; k++) out[i][k] = value(r->rank, op + (uint64_t)i, k);
    sagecomm_segment s = {out[i], n * 4};
    sagecomm_op send = {.kind = SAGECOMM_SEND, .root = to, .tag = i, .n_in = 1, .in = &s, .flags = SAGECOMM_ASYNC};
    CHECK(scr_issue(r->handle, &send, &w[i], NULL, &err) >= 0);
  }
  for (int i = 1; i >= 0; i--) {
    sagecomm_segment s = {in[i], n * 4};
    sagecomm_op recv = {.kind = SAGECOMM_RECV, .root = i ? from : SAGECOMM_ANY_SOURCE, .tag = i, .n_out = 1, .out = &s};
    int32_t status = scr_issue(r->handle, &recv, &w[2 + i], NULL, &err);
    while (status == SAGECOMM_PENDING) status = scr_wait(w[2 + i], 10 * 1000000, &err);
    CHECK(status == SAGECOMM_OK);
  }
  for (int i = 0; i < 4; i++) {
    if (w[i] == 0) continue;
    while (scr_wait(w[i], 10 * 1000000, &err) == SAGECOMM_PENDING) continue;
    CHECK(scr_wait(w[i], 0, &err) == SAGECOMM_OK);
    scr_release(w[i]);
  }
  for (int i = 0; i < 2; i++) {
    for (uint32_t k = 0; k < n; k++) CHECK(in[i][k] == value(from, op + (uint64_t)i, k));
    free(in[i]);
    free(out[i]);
  }
}

static void rank_main(rank *r, void *arg) {
  int rounds = *(int *)arg;
  pending open[4] = {0};
  int n_open = 0;
  for (int round = 0; round < rounds; round++) {
    uint64_t x = next_random(&r->random);
    int kind = (int)(x % 6), sync = (x >> 8) % 2, how = (x >> 9) % 2, root = (int)((x >> 16) % (uint64_t)size);
    uint32_t n = (x >> 24) % 3 == 0 ? (x >> 32) % MAX_ELEMENTS : (x >> 32) % 64;
    if (kind == 5) {
      exchange(r, (uint64_t)round * 2, n);
      continue;
    }
    pending p = {.op = (uint64_t)round, .kind = kind, .root = root, .n = kind == SAGECOMM_BARRIER ? 0 : n};
    uint32_t blocks = kind == SAGECOMM_ALL_GATHER ? (uint32_t)size : 1;
    p.in = malloc(p.n * 4 + 4);
    p.out = malloc(blocks * p.n * 4 + 4);
    p.done = calloc(1, sizeof *p.done);
    for (uint32_t i = 0; i < p.n; i++) p.in[i] = value(r->rank, p.op, i);
    for (uint32_t i = 0; i < blocks * p.n; i++) p.out[i] = -1;
    sagecomm_segment in = {p.in, p.n * 4}, out = {p.out, blocks * p.n * 4};
    bool root_only = kind == SAGECOMM_BROADCAST && r->rank != root;
    sagecomm_op op = {.kind = (uint8_t)kind,
                      .dtype = SAGECOMM_INT32,
                      .flags = sync ? 0 : SAGECOMM_ASYNC,
                      .root = root,
                      .n_in = kind == SAGECOMM_BARRIER || root_only ? 0 : 1,
                      .n_out = kind == SAGECOMM_BARRIER ? 0 : 1,
                      .in = &in,
                      .out = &out};
    sagecomm_error err;
    if (kind == SAGECOMM_BROADCAST && r->rank == root) memcpy(p.out, p.in, p.n * 4);
    int32_t status = scr_issue(r->handle, &op, &p.work, NULL, &err);
    CHECK(status >= 0);
    if (!sync && n_open < 4) {
      open[n_open++] = p;
      continue;
    }
    finish(r, &p, how);
    while (n_open > 0 && (x >> 10) % 2) {
      n_open--;
      finish(r, &open[n_open], (x >> 11) % 2);
    }
  }
  while (n_open > 0) finish(r, &open[--n_open], 0);
}

static int rounds;

static void test_random(int n, waiting w, uint64_t seed) {
  size = n;
  run_ranks(n, w.spin, w.yield_us, seed, rank_main, &rounds);
}

static void random_with_ticks(rank *r, void *arg) { with_ticks(r, rank_main, arg); }

static void test_random_fused(int n, waiting w, uint64_t seed) {
  size = n;
  fusing = true;
  run_ranks(n, w.spin, w.yield_us, seed, random_with_ticks, &rounds);
  fusing = false;
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*run)(int size, waiting w, uint64_t seed);
  } scenarios[] = {
      {"random", test_random},
      {"reductions", test_reductions},
      {"segments", test_segments},
      {"all_to_all", test_all_to_all},
      {"blocks", test_blocks},
      {"channels", test_channels},
      {"uneven_is_refused", test_uneven_is_refused},
      {"blocked_for_long", test_blocked_for_long},
      {"coalesced", test_coalesced},
      {"steps_of_coalesced_p2p", test_steps_of_coalesced_p2p},
      {"coalesced_failure", test_coalesced_failure},
      {"coalesced_without_memory", test_coalesced_without_memory},
      {"long_sends", test_long_sends},
      {"reverse_tags", test_reverse_tags},
      {"bounded_passes", test_bounded_passes},
      {"sleep_beside_another", test_sleep_beside_another},
      {"left_to_the_engine", test_left_to_the_engine},
      {"timeout_of_what_nobody_waits_for", test_timeout_of_what_nobody_waits_for},
      {"nested_done", test_nested_done},
      {"wait_against_on_done", test_wait_against_on_done},
      {"left_to_a_waiter", test_left_to_a_waiter},
      {"taken_from_a_waiter", test_taken_from_a_waiter},
      {"kept_from_a_waiter", test_kept_from_a_waiter},
      {"mismatch", test_mismatch},
      {"timeout", test_timeout},
      {"abort", test_abort},
      {"published_before_a_failure", test_published_before_a_failure},
      {"declare_from_many", test_declare_from_many},
      {"published_for_the_queue", test_published_for_the_queue},
      {"behind_a_failure", test_behind_a_failure},
      {"own_words", test_own_words},
      {"cause_is_replaced", test_cause_is_replaced},
      {"goodbye", test_goodbye},
      {"random_fused", test_random_fused},
      {"fused", test_fused},
      {"fused_abort", test_fused_abort},
      {"gates", test_gates},
      {"averages_at_gates", test_averages_at_gates},
      {"late_device", test_late_device},
      {"gate_opens", test_gate_opens},
      {"p2p_gates", test_p2p_gates},
      {"sender_leaves_a_gate", test_sender_leaves_a_gate},
      {"timeout_at_a_gate", test_timeout_at_a_gate},
      {"looks_at_gates", test_looks_at_gates},
      {"gates_left_to_the_engine", test_gates_left_to_the_engine},
      {"external", test_external},
      {"external_compared", test_external_compared},
      {"external_mismatch", test_external_mismatch},
      {"external_before_a_gate", test_external_before_a_gate},
      {"external_cut", test_external_cut},
      {"external_unseen", test_external_unseen},
      {"external_failed", test_external_failed},
      {"external_void", test_external_void},
      {"external_left", test_external_left},
      {"programs_at_gates", test_programs_at_gates},
      {"abort_at_gates", test_abort_at_gates},
      {"p2p_programs_at_gates", test_p2p_programs_at_gates},
      {"p2p_abort_at_gates", test_p2p_abort_at_gates},
      {"p2p_first_is_late", test_p2p_first_is_late},
      {"driver_looks_at_gates", test_driver_looks_at_gates},
      {"engine_looks_at_gates", test_engine_looks_at_gates},
      {"externals_of_streams", test_externals_of_streams},
      {"external_behind_another", test_external_behind_another},
      {"external_cut_while_asked", test_external_cut_while_asked},
      {"external_done_behind_the_look", test_external_done_behind_the_look},
      {"external_beside_a_gate", test_external_beside_a_gate},
      {"external_late_behind_another", test_external_late_behind_another},
      {"marks", test_marks},
      {"splits", test_splits},
      {"splits_compared", test_splits_compared},
      {"splits_copied", test_splits_copied},
      {"splits_far_ahead", test_splits_far_ahead},
      {"failure_between_messages", test_failure_between_messages},
      {"goodbye_after_a_message", test_goodbye_after_a_message},
      {"shared_block_size_is_not_read_again", test_shared_block_size_is_not_read_again},
      {"wrong_offsets", test_wrong_offsets},
      {"bad_frames", test_bad_frames},
      {"culprit_of_a_bad_frame", test_culprit_of_a_bad_frame},
      {"wrong_counts", test_wrong_counts},
      {"changing_frame", test_changing_frame},
      {"wrong_channels", test_wrong_channels},
      {"bad_messages", test_bad_messages},
      {"wrong_taken", test_wrong_taken},
      {"awaits", test_awaits},
      {"random_garbage", test_random_garbage},
      {"state", test_state},
      {"recorder", test_recorder},
  };
  static const waiting ways[] = {{20, 100}, {0, 0}}; /* the second goes straight to sleep */
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  rounds = argc > 2 ? atoi(argv[2]) : 200;
  if (scr_force_kernels("portable") != 0) return 2;
  printf("seed %llu\n", (unsigned long long)seed);
  for (unsigned s = 0; s < sizeof scenarios / sizeof *scenarios; s++) {
    if (argc > 3 && strcmp(argv[3], scenarios[s].name) != 0) continue;
    for (int n = 1; n <= MAX_RANKS; n = n < 4 ? n + 1 : n * 2) {
      for (unsigned w = 0; w < 2; w++) {
        /* What runs is known when it hangs. */
        printf("%s, %d ranks, way of waiting %u\n", scenarios[s].name, n, w);
        fflush(stdout);
        scenarios[s].run(n, ways[w], seed * 2 + 1 + w + (uint64_t)n);
      }
    }
  }
  printf("all scenarios passed\n");
  return 0;
}
