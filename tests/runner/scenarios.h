/* scenarios.h: what threads_test runs. Each is called once for each number of ranks and stops the program where the
 * runner is wrong. spin and yield_us: how ranks wait, see run_ranks(). */
#ifndef SCENARIOS_H
#define SCENARIOS_H

#include "ranks.h"

typedef struct waiting {
  uint32_t spin, yield_us;
} waiting;

/* operations.c */
void test_reductions(int size, waiting w, uint64_t seed);
void test_segments(int size, waiting w, uint64_t seed);
void test_all_to_all(int size, waiting w, uint64_t seed);
void test_blocks(int size, waiting w, uint64_t seed);
/* channels.c */
void test_channels(int size, waiting w, uint64_t seed);
void test_uneven_is_refused(int size, waiting w, uint64_t seed);
void test_blocked_for_long(int size, waiting w, uint64_t seed);
/* coalesced.c */
void test_coalesced(int size, waiting w, uint64_t seed);
void test_steps_of_coalesced_p2p(int size, waiting w, uint64_t seed);
void test_coalesced_failure(int size, waiting w, uint64_t seed);
void test_coalesced_without_memory(int size, waiting w, uint64_t seed);
/* p2p.c */
void test_long_sends(int size, waiting w, uint64_t seed);
void test_reverse_tags(int size, waiting w, uint64_t seed);
void test_bounded_passes(int size, waiting w, uint64_t seed);
void test_sleep_beside_another(int size, waiting w, uint64_t seed);
void test_left_to_the_engine(int size, waiting w, uint64_t seed);
void test_timeout_of_what_nobody_waits_for(int size, waiting w, uint64_t seed);
/* completion.c */
void test_nested_done(int size, waiting w, uint64_t seed);
void test_wait_against_on_done(int size, waiting w, uint64_t seed);
/* waiters.c */
void test_left_to_a_waiter(int size, waiting w, uint64_t seed);
void test_taken_from_a_waiter(int size, waiting w, uint64_t seed);
void test_kept_from_a_waiter(int size, waiting w, uint64_t seed);
/* failures.c */
void test_mismatch(int size, waiting w, uint64_t seed);
void test_timeout(int size, waiting w, uint64_t seed);
void test_abort(int size, waiting w, uint64_t seed);
void test_published_before_a_failure(int size, waiting w, uint64_t seed);
void test_declare_from_many(int size, waiting w, uint64_t seed);
void test_goodbye(int size, waiting w, uint64_t seed);
void test_failure_between_messages(int size, waiting w, uint64_t seed);
void test_goodbye_after_a_message(int size, waiting w, uint64_t seed);
void test_published_for_the_queue(int size, waiting w, uint64_t seed);
void test_own_words(int size, waiting w, uint64_t seed);
void test_cause_is_replaced(int size, waiting w, uint64_t seed);
void test_behind_a_failure(int size, waiting w, uint64_t seed);
/* fusing.c */
void test_fused(int size, waiting w, uint64_t seed);
void test_fused_abort(int size, waiting w, uint64_t seed);
/* gates.c */
void test_gates(int size, waiting w, uint64_t seed);
void test_averages_at_gates(int size, waiting w, uint64_t seed);
void test_late_device(int size, waiting w, uint64_t seed);
void test_gate_opens(int size, waiting w, uint64_t seed);
/* externals.c */
void test_external(int size, waiting w, uint64_t seed);
void test_external_compared(int size, waiting w, uint64_t seed);
void test_external_mismatch(int size, waiting w, uint64_t seed);
void test_external_before_a_gate(int size, waiting w, uint64_t seed);
void test_external_cut(int size, waiting w, uint64_t seed);
void test_external_unseen(int size, waiting w, uint64_t seed);
void test_external_failed(int size, waiting w, uint64_t seed);
void test_external_void(int size, waiting w, uint64_t seed);
void test_external_left(int size, waiting w, uint64_t seed);
/* gate_programs.c */
void test_programs_at_gates(int size, waiting w, uint64_t seed);
void test_abort_at_gates(int size, waiting w, uint64_t seed);
/* external_orders.c */
void test_externals_of_streams(int size, waiting w, uint64_t seed);
void test_external_behind_another(int size, waiting w, uint64_t seed);
void test_external_done_behind_the_look(int size, waiting w, uint64_t seed);
void test_external_cut_while_asked(int size, waiting w, uint64_t seed);
void test_external_beside_a_gate(int size, waiting w, uint64_t seed);
void test_external_late_behind_another(int size, waiting w, uint64_t seed);
void test_marks(int size, waiting w, uint64_t seed);
/* splits.c */
void test_splits(int size, waiting w, uint64_t seed);
void test_splits_compared(int size, waiting w, uint64_t seed);
void test_splits_copied(int size, waiting w, uint64_t seed);
void test_splits_far_ahead(int size, waiting w, uint64_t seed);
/* gate_waits.c */
void test_driver_looks_at_gates(int size, waiting w, uint64_t seed);
void test_engine_looks_at_gates(int size, waiting w, uint64_t seed);
/* p2p_gates.c */
void test_p2p_gates(int size, waiting w, uint64_t seed);
void test_p2p_programs_at_gates(int size, waiting w, uint64_t seed);
void test_p2p_first_is_late(int size, waiting w, uint64_t seed);
void test_p2p_abort_at_gates(int size, waiting w, uint64_t seed);
void test_sender_leaves_a_gate(int size, waiting w, uint64_t seed);
void test_timeout_at_a_gate(int size, waiting w, uint64_t seed);
void test_looks_at_gates(int size, waiting w, uint64_t seed);
void test_gates_left_to_the_engine(int size, waiting w, uint64_t seed);
/* garbage.c */
void test_culprit_of_a_bad_frame(int size, waiting w, uint64_t seed);
void test_shared_block_size_is_not_read_again(int size, waiting w, uint64_t seed);
void test_wrong_offsets(int size, waiting w, uint64_t seed);
void test_bad_frames(int size, waiting w, uint64_t seed);
void test_wrong_counts(int size, waiting w, uint64_t seed);
void test_changing_frame(int size, waiting w, uint64_t seed);
/* bad_channels.c */
void test_wrong_channels(int size, waiting w, uint64_t seed);
void test_bad_messages(int size, waiting w, uint64_t seed);
void test_wrong_taken(int size, waiting w, uint64_t seed);
void test_awaits(int size, waiting w, uint64_t seed);
/* scribble.c */
void test_random_garbage(int size, waiting w, uint64_t seed);
/* state.c */
void test_state(int size, waiting w, uint64_t seed);
/* recorder.c */
void test_recorder(int size, waiting w, uint64_t seed);

#endif
