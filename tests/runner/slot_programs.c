/* slot_programs.c: programs over slots, as Go compiles them from slot plans (algo/shmplan). Their chunks are short, so
 * that a collective has several. */
#include "plans.h"

scr_program *compile_slots(scr_group *g, const sagecomm_op *op, uint64_t bytes) {
  scr_program *p = scr_program_new();
  bool premul = op->reduce_op == SAGECOMM_PREMUL_SUM, large = bytes > 4096;
  p->kernels = scr_get_kernels();
  p->large = large;
  p->chunk = large ? 16384 : 8192;
  p->elem = op->dtype == SAGECOMM_UINT8 ? 1 : op->dtype == SAGECOMM_INT64 ? 8 : 4;
  p->divisor = g->size;
  p->reduce = p->kernels->reduce[op->dtype][op->reduce_op];
  p->scale = premul ? p->kernels->scale[op->dtype] : NULL;
  p->own_from_input = !premul;
  /* A slot holds a chunk of each block; short blocks of many ranks do not all fit into a small one. */
  if (op->kind == SAGECOMM_REDUCE_SCATTER || op->kind == SAGECOMM_SCATTER) {
    if (!large) p->chunk = 4096 / g->size & ~63;
  }
  scr_stage *s = p->stage;
  switch (op->kind) {
    case SAGECOMM_ALL_REDUCE:
      if (!large) {
        s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
        s[p->n_stages++] = (scr_stage){.action = SCR_REDUCE, .to_output = 1, .from = SCR_EVERYBODY};
      } else {
        s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH, .skip_own = !premul};
        s[p->n_stages++] = (scr_stage){.action = SCR_REDUCE, .lag = 1, .share = 1, .to_output = 1, .back = SCR_OTHERS};
        s[p->n_stages++] = (scr_stage){.action = SCR_COLLECT, .lag = 2, .from = SCR_OTHERS};
        p->max_lag = 2;
      }
      break;
    case SAGECOMM_BROADCAST:
      if (g->rank == op->root) {
        s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
      } else {
        s[p->n_stages++] = (scr_stage){.action = SCR_READ, .from = SCR_FROM_ROOT};
      }
      break;
    case SAGECOMM_ALL_GATHER:
      p->output_blocks = 1;
      s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
      s[p->n_stages++] = (scr_stage){.action = SCR_READ, .from = SCR_OTHERS};
      break;
    case SAGECOMM_REDUCE:
      s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
      if (g->rank == op->root) s[p->n_stages++] = (scr_stage){.action = SCR_REDUCE, .to_output = 1};
      break;
    case SAGECOMM_REDUCE_SCATTER:
      p->input_blocks = 1;
      s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
      s[p->n_stages++] = (scr_stage){.action = SCR_REDUCE, .lag = 1, .to_output = 1, .from = SCR_EVERYBODY};
      p->max_lag = 1;
      break;
    case SAGECOMM_ALL_TO_ALL:
      p->input_blocks = p->output_blocks = p->large = large = true;
      p->chunk = 16384;
      if (g->size > 1) {
        p->head = 512;
        p->n_heads = 2;
        s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH, .head = 1};
        s[p->n_stages++] = (scr_stage){.action = SCR_READ, .from = SCR_OTHERS, .head = 1};
      }
      s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
      s[p->n_stages++] = (scr_stage){.action = SCR_READ, .lag = 1, .from = SCR_OTHERS};
      p->max_lag = 1;
      break;
    case SAGECOMM_GATHER:
      p->output_blocks = 1;
      s[p->n_stages++] = g->rank == op->root ? (scr_stage){.action = SCR_READ, .from = SCR_OTHERS}
                                             : (scr_stage){.action = SCR_PUBLISH};
      break;
    case SAGECOMM_SCATTER:
      p->input_blocks = 1;
      if (g->rank == op->root) {
        s[p->n_stages++] = (scr_stage){.action = SCR_LOCAL};
        s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
      } else {
        s[p->n_stages++] = (scr_stage){.action = SCR_READ, .from = SCR_FROM_ROOT};
      }
      break;
    default:
      s[p->n_stages++] = (scr_stage){.action = SCR_PUBLISH};
      s[p->n_stages++] = (scr_stage){.action = SCR_AWAIT, .from = SCR_EVERYBODY};
  }
  if (large && !scr_group_has_large(g))
    scr_group_set_large(g, take_memory(g->rank, SCR_LARGE_SLOTS * SCR_LARGE_STRIDE));
  return p;
}
