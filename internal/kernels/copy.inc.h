/* copy.inc.h: copying. memcpy() is not used: with a variable length it is a call through the PLT, and inside a
 * virtual machine it reads the host's cache size and switches to non-temporal stores far too late. On Zen 5, `rep
 * movsb` is a third faster than this loop above 1 MiB, where copy_stream() is faster still, and slower below 64 KiB. */

/* Copies n <= 2 registers as two overlapping pieces, each as long as the widest access that fits in n. */
SCR_INLINE void copy_short(uint8_t *d, const uint8_t *s, size_t n) {
#if SCR_VB >= 64
  if (n >= 64) {
    const vreg a = load_full(s), b = load_full(s + n - 64);
    store_full(d, a);
    store_full(d + n - 64, b);
    return;
  }
#endif
#if SCR_VB >= 32
  if (n >= 32) {
    const v256 a = load32(s), b = load32(s + n - 32);
    store32(d, a);
    store32(d + n - 32, b);
    return;
  }
#endif
  if (n >= 16) {
    const v128 a = load16(s), b = load16(s + n - 16);
    store16(d, a);
    store16(d + n - 16, b);
  } else if (n >= 8) {
    const uint64_t a = load8(s), b = load8(s + n - 8);
    store8(d, a);
    store8(d + n - 8, b);
  } else if (n) {
    store_part8(d, part8(s, n), n);
  }
}

/* The distance of prefetching. The processor's own prefetching stops at the end of a page, and never fetches lines
 * for writing that lie in another core's cache, as those of fifos and slots do. */
#define SCR_AHEAD_READ 2048
#define SCR_AHEAD_WRITE 1024
#define SCR_AHEAD_FROM 16384

SCR_INLINE size_t copy_ahead(uint8_t *d, const uint8_t *s, size_t n) {
  size_t i = 0;
  for (; i + SCR_AHEAD_READ + 256 <= n; i += 256) {
    for (size_t j = 0; j < 256; j += 64) {
      __builtin_prefetch(s + i + SCR_AHEAD_READ + j, 0);
      __builtin_prefetch(d + i + SCR_AHEAD_WRITE + j, 1);
    }
    for (size_t j = 0; j < 256; j += SCR_VB) store_full(d + i + j, load_full(s + i + j));
  }
  return i;
}

/* Copies n bytes, at least one register. */
SCR_INLINE void copy_loop(uint8_t *d, const uint8_t *s, size_t n) {
  const vreg last = load_full(s + n - SCR_VB);
  size_t i = 0;
  for (; i + 4 * SCR_VB <= n; i += 4 * SCR_VB) {
    const vreg a = load_full(s + i), b = load_full(s + i + SCR_VB);
    const vreg c = load_full(s + i + 2 * SCR_VB), e = load_full(s + i + 3 * SCR_VB);
    store_full(d + i, a);
    store_full(d + i + SCR_VB, b);
    store_full(d + i + 2 * SCR_VB, c);
    store_full(d + i + 3 * SCR_VB, e);
  }
  for (; i + SCR_VB < n; i += SCR_VB) store_full(d + i, load_full(s + i));
  store_full(d + n - SCR_VB, last);
}

static void copy(void *dst, const void *src, size_t n) {
  uint8_t *d = dst;
  const uint8_t *s = src;
  if (n <= 2 * SCR_VB) {
    copy_short(d, s, n);
    return;
  }
  if (n >= SCR_AHEAD_FROM) {
    const size_t done = copy_ahead(d, s, n);
    d += done;
    s += done;
    n -= done;
  }
  copy_loop(d, s, n);
}

/* SCR_STREAM(p, v) is a non-temporal store of a register to p, which is aligned to the register's size.
 * SCR_STREAM_FENCE orders such stores before later ones. A variant without them uses ordinary stores. */
#ifdef SCR_STREAM
static void copy_stream(void *dst, const void *src, size_t n) {
  uint8_t *d = dst;
  const uint8_t *s = src;
  if (n < 4096) {
    copy(dst, src, n);
    return;
  }
  const size_t head = (size_t)(-(uintptr_t)d & 63);
  copy(d, s, head);
  d += head;
  s += head;
  n -= head;
  size_t i = 0;
  for (; i + 256 <= n; i += 256) {
    for (size_t j = 0; j < 256; j += SCR_VB) SCR_STREAM(d + i + j, load_full(s + i + j));
  }
  SCR_STREAM_FENCE();
  copy(d + i, s + i, n - i);
}
#else
static void copy_stream(void *dst, const void *src, size_t n) { copy(dst, src, n); }
#endif
