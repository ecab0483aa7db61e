/* gate.h: gates, at which runs and the streams of a device hand the units of a buffer over to each other
 * (docs/protocol.md, section 11). Included by runner.h. */
#ifndef SCR_GATE_H
#define SCR_GATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The words of a gate, in pinned memory of this process, all 0 when the operation is issued. Devices write and compare the
 * lower 32 bits of each; the upper half stays 0. The machine is little-endian. */
typedef struct scr_gate_words {
  _Alignas(128) _Atomic uint64_t input_ready;  /* units in the input buffer; the device writes it */
  _Alignas(128) _Atomic uint64_t output_taken; /* units that the device has copied out; the device writes it */
  _Alignas(128) _Atomic uint64_t input_taken;  /* units of which the run reads nothing any more; a driver writes it */
  _Alignas(128) _Atomic uint64_t output_done;  /* units in the output buffer; a driver writes it */
} scr_gate_words;
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the lower half of a word comes first");

/* What input_taken and output_done are set to when a run is complete or ends with an error: devices compare cyclically,
 * (int32_t)(word - value) >= 0, so this ends all waits for values up to 2^30. */
#define SCR_GATE_OPEN 0x7fffffff
#define SCR_GATE_MAX (1 << 30) /* units are fewer */

/* A word that another process may write. */
typedef _Atomic uint32_t scr_word;

/* How a run uses a gate. */
typedef struct scr_gate {
  scr_gate_words *words;    /* they stay valid until the run is complete; NULL: host memory, which is always ready */
  uint32_t window;          /* units for which the buffers have room; 0: for all */
  uint32_t inputs, outputs; /* units that the device moves in and out */
  bool external;            /* the stream carries the operation out; the program is empty */
  /* Not 0: what the stream has done may be void. It stays valid as long as the words; NULL: there is none. */
  const scr_word *voided;
} scr_gate;

#endif
