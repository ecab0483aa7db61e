/* loop.inc.h: the loop of every reduction. Included with SCR_ACC, the type of an accumulator, and SCR_LOOP_NAME.
 *
 * The loop reduces one position at a time over all sources in registers and stores it to both destinations. It takes
 * one pass over memory for any number of sources. dst or dst2 may be one of the sources, because a position is read
 * from all sources before it is written. (An accumulator of 1 to 16 KB in the L1 cache, filled source by source,
 * took twice as long for 4 and 8 sources, whether they lay in L2, L3 or main memory.)
 * */

/* The function arguments are constants in each caller, so the compiler inlines them. Each call of one handles `step`
 * bytes. n counts bytes of memory. */
SCR_INLINE void SCR_LOOP_NAME(uint8_t *dst, uint8_t *dst2, const void *const *src, int nsrc, size_t n, double divisor,
                              size_t step, SCR_ACC (*load)(const uint8_t *p),
                              SCR_ACC (*load_part)(const uint8_t *p, size_t n), SCR_ACC (*op)(SCR_ACC a, SCR_ACC b),
                              SCR_ACC (*post)(SCR_ACC v, double divisor), void (*store)(uint8_t *p, SCR_ACC v),
                              void (*store_part)(uint8_t *p, SCR_ACC v, size_t n)) {
  const uint8_t *const s0 = src[0];
  if (n < step) {
    if (n == 0) return;
    SCR_ACC a = load_part(s0, n);
    for (int k = 1; k < nsrc; k++) a = op(a, load_part(src[k], n));
    a = post(a, divisor);
    store_part(dst, a, n);
    if (dst2) store_part(dst2, a, n);
    return;
  }

  /* The last register overlaps the one before it, so that it is full. It is reduced before anything is written,
   * because the overlap may lie in dst and in a source at once. */
  const size_t end = n - step;
  SCR_ACC last = load(s0 + end);
  for (int k = 1; k < nsrc; k++) last = op(last, load((const uint8_t *)src[k] + end));
  last = post(last, divisor);

  size_t i = 0;
  if (nsrc >= 2) {
    const uint8_t *const s1 = src[1];
    for (; i + 4 * step <= end; i += 4 * step) {
      SCR_ACC a = op(load(s0 + i), load(s1 + i));
      SCR_ACC b = op(load(s0 + i + step), load(s1 + i + step));
      SCR_ACC c = op(load(s0 + i + 2 * step), load(s1 + i + 2 * step));
      SCR_ACC d = op(load(s0 + i + 3 * step), load(s1 + i + 3 * step));
      for (int k = 2; k < nsrc; k++) {
        const uint8_t *const s = (const uint8_t *)src[k] + i;
        a = op(a, load(s));
        b = op(b, load(s + step));
        c = op(c, load(s + 2 * step));
        d = op(d, load(s + 3 * step));
      }
      a = post(a, divisor);
      b = post(b, divisor);
      c = post(c, divisor);
      d = post(d, divisor);
      store(dst + i, a);
      store(dst + i + step, b);
      store(dst + i + 2 * step, c);
      store(dst + i + 3 * step, d);
      if (dst2) {
        store(dst2 + i, a);
        store(dst2 + i + step, b);
        store(dst2 + i + 2 * step, c);
        store(dst2 + i + 3 * step, d);
      }
    }
  }
  for (; i < end; i += step) {
    SCR_ACC a = load(s0 + i);
    for (int k = 1; k < nsrc; k++) a = op(a, load((const uint8_t *)src[k] + i));
    a = post(a, divisor);
    store(dst + i, a);
    if (dst2) store(dst2 + i, a);
  }
  store(dst + end, last);
  if (dst2) store(dst2 + end, last);
}

#undef SCR_ACC
#undef SCR_LOOP_NAME
