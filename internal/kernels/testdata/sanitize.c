/* sanitize.c: every kernel on blocks of the heap that begin and end with the data, for AddressSanitizer and
 * UndefinedBehaviorSanitizer; and whether all variants that the machine runs give the same bits.
 *
 * Prints one number that depends on every result of the portable kernels, NaNs made alike: compare it between
 * processors of different kinds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../variants.h"

enum { MAX_SOURCES = 5 };
static const size_t sizes[SAGECOMM_DTYPE_COUNT] = {1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 2, 4, 8, 8, 16, 1, 1, 1, 1, 1, 8};

static uint64_t state = 0x9e3779b97f4a7c15u;
static uint64_t random64(void) { /* splitmix64 */
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* Makes NaNs alike. p may be unaligned. */
static void canonicalize(uint8_t *p, size_t n, int dtype) {
  size_t width;
  uint64_t infinity;
  switch (dtype) {
    case SAGECOMM_FLOAT16:
      width = 2, infinity = 0x7c00;
      break;
    case SAGECOMM_BFLOAT16:
      width = 2, infinity = 0x7f80;
      break;
    case SAGECOMM_FLOAT32:
    case SAGECOMM_COMPLEX64:
      width = 4, infinity = 0x7f800000;
      break;
    case SAGECOMM_FLOAT64:
    case SAGECOMM_COMPLEX128:
      width = 8, infinity = UINT64_C(0x7ff) << 52;
      break;
    default:
      return;
  }
  uint64_t sign = UINT64_C(1) << (8 * width - 1);
  for (size_t i = 0; i < n; i += width) {
    uint64_t v = 0;
    memcpy(&v, p + i, width);
    if ((v & ~sign) > infinity) v = sign - 1;
    memcpy(p + i, &v, width);
  }
}

/* A block of the heap. Its last n bytes are the data, which begins `shift` bytes behind the beginning of the block. */
typedef struct block {
  uint8_t *base, *p;
} block;
static block new_block(const uint8_t *content, size_t n, size_t shift) {
  block b;
  b.base = malloc(n + shift > 0 ? n + shift : 1);
  if (b.base == NULL) abort();
  b.p = b.base + shift;
  if (n && content) memcpy(b.p, content, n);
  return b;
}

static uint64_t checksum;

/* Runs one kernel of one variant and returns the result, which the caller frees. The destination is the memory of source
 * `alias`, or memory of its own if that is -1. With `twice` there is a second destination. */
static uint8_t *run_reduce(const scr_kernels *k, int dtype, int op, size_t count, int nsrc, uint8_t **content,
                           int alias, int twice, size_t shift) {
  const size_t n = count * sizes[dtype];
  block src[MAX_SOURCES], apart = new_block(NULL, n, shift), second = new_block(NULL, n, 0);
  const void *list[MAX_SOURCES];
  for (int i = 0; i < nsrc; i++) {
    src[i] = new_block(content[i], n, shift * (size_t)(i + 1) % 16);
    list[i] = src[i].p;
  }
  uint8_t *dst = alias >= 0 ? src[alias].p : apart.p;
  k->reduce[dtype][op](dst, twice ? second.p : NULL, list, nsrc, count, nsrc);
  if (twice && n && memcmp(dst, second.p, n) != 0) {
    fprintf(stderr, "%s: type %d, reduction %d: the destinations differ\n", k->name, dtype, op);
    exit(1);
  }
  uint8_t *result = malloc(n + 1);
  if (result == NULL) abort();
  if (n) memcpy(result, dst, n);
  canonicalize(result, n, dtype);
  for (int i = 0; i < nsrc; i++) free(src[i].base);
  free(apart.base);
  free(second.base);
  return result;
}

static void check_reduces(const scr_kernels **variants, int n_variants, int dtype, int op, size_t count, int nsrc) {
  const size_t n = count * sizes[dtype];
  uint8_t *content[MAX_SOURCES];
  for (int i = 0; i < nsrc; i++) {
    content[i] = malloc(n + 8);
    if (content[i] == NULL) abort();
    for (size_t j = 0; j < n; j += 8) {
      uint64_t v = random64();
      memcpy(content[i] + j, &v, 8);
    }
  }
  uint8_t *want = run_reduce(variants[n_variants - 1], dtype, op, count, nsrc, content, -1, 0, 0);
  for (size_t j = 0; j < n; j++) checksum = (checksum ^ want[j]) * UINT64_C(0x100000001b3);
  for (int v = 0; v < n_variants; v++) {
    for (int alias = -1; alias < nsrc; alias++) {
      uint8_t *got =
          run_reduce(variants[v], dtype, op, count, nsrc, content, alias, alias & 1, (size_t)(alias + 1) * 3);
      if (n && memcmp(got, want, n) != 0) {
        fprintf(stderr, "%s: type %d, reduction %d, %zu elements of %d sources, dst %d: other bits than portable\n",
                variants[v]->name, dtype, op, count, nsrc, alias);
        exit(1);
      }
      free(got);
    }
  }
  free(want);
  for (int i = 0; i < nsrc; i++) free(content[i]);
}

static void check_scale(const scr_kernels *k, int dtype, size_t count) {
  const size_t n = count * sizes[dtype];
  block src = new_block(NULL, n, 2), dst = new_block(NULL, n, 0);
  for (size_t j = 0; j < n; j++) src.p[j] = (uint8_t)(j * 37);
  k->scale[dtype](dst.p, src.p, count, 0.3);
  k->scale[dtype](src.p, src.p, count, 0.3);
  canonicalize(dst.p, n, dtype);
  canonicalize(src.p, n, dtype);
  if (n && memcmp(dst.p, src.p, n) != 0) {
    fprintf(stderr, "%s: type %d: scaling in place gives other bits\n", k->name, dtype);
    exit(1);
  }
  for (size_t j = 0; j < n && strcmp(k->name, "portable") == 0; j++) {
    checksum = (checksum ^ dst.p[j]) * UINT64_C(0x100000001b3);
  }
  free(src.base);
  free(dst.base);
}

static void check_copy(const scr_kernels *k, size_t n, size_t shift) {
  uint8_t *content = malloc(n + 1);
  if (content == NULL) abort();
  for (size_t j = 0; j < n; j++) content[j] = (uint8_t)random64();
  for (int stream = 0; stream < 2; stream++) {
    block src = new_block(content, n, shift), dst = new_block(NULL, n, 5 * shift);
    (stream ? k->copy_stream : k->copy)(dst.p, src.p, n);
    if (n && memcmp(dst.p, content, n) != 0) {
      fprintf(stderr, "%s: copying %zu bytes, stream %d: wrong\n", k->name, n, stream);
      exit(1);
    }
    free(src.base);
    free(dst.base);
  }
  free(content);
}

int main(void) {
  const scr_kernels *variants[SCR_MAX_KERNELS];
  const int n_variants = scr_runnable_kernels(variants);
  size_t counts[80], n_counts = 0;
  for (size_t c = 0; c <= 70; c++) counts[n_counts++] = c;
  counts[n_counts++] = 127;
  counts[n_counts++] = 513;
  counts[n_counts++] = 1027;
  for (int dtype = 0; dtype < SAGECOMM_DTYPE_COUNT; dtype++) {
    for (size_t c = 0; c < n_counts; c++) {
      for (int op = 0; op < SAGECOMM_REDUCE_OP_COUNT; op++) {
        if (variants[0]->reduce[dtype][op] == NULL) continue;
        for (int nsrc = 1; nsrc <= MAX_SOURCES; nsrc += nsrc == 3 ? 2 : 1) {
          check_reduces(variants, n_variants, dtype, op, counts[c], nsrc);
        }
      }
      for (int v = 0; v < n_variants; v++) {
        if (variants[v]->scale[dtype] != NULL) check_scale(variants[v], dtype, counts[c]);
      }
    }
  }
  for (int v = 0; v < n_variants; v++) {
    for (size_t n = 0; n <= 5000; n += n < 300 ? 1 : 97) {
      for (size_t shift = 0; shift < 13; shift += 4) check_copy(variants[v], n, shift);
    }
  }
  printf("%016llx\n", (unsigned long long)checksum);
  return 0;
}
