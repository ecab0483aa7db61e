/* on_devices.c: see on_devices.h. */
#include "on_devices.h"

#include <pthread.h>
#include <unistd.h>

void run_on_devices(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg) {
  device_lanes = true;
  run_ranks(n, w.spin, w.yield_us, seed, fn, arg);
  device_lanes = false;
}

void run_seldom(int n, waiting w, uint64_t seed, rank_fn *fn, void *arg) {
  seldom = true;
  run_on_devices(n, w, seed, fn, arg);
  seldom = false;
}

typedef struct watch {
  scr_group *group;
  uint64_t before;
  void (*reach)(void *of);
  void *of;
} watch;

static void *reach_after_sleeps(void *p) {
  watch *w = p;
  while (atomic_load(&w->group->sleeps) - w->before < 10) usleep(100);
  w->reach(w->of);
  return NULL;
}

void wait_in_short_sleeps(const rank *r, sagecomm_work work, void (*reach)(void *of), void *of) {
  scr_group *group = r->beside->group;
  watch w = {group, atomic_load(&group->sleeps), reach, of};
  sagecomm_error err;
  pthread_t device;
  CHECK(pthread_create(&device, NULL, reach_after_sleeps, &w) == 0);
  CHECK(scr_wait(work, SELDOM_NS, &err) == SAGECOMM_OK);
  CHECK(pthread_join(device, NULL) == 0);
}

void await_end(const ending *e) {
  int64_t reached = scr_now();
  while (atomic_load(&e->at) == 0) {
    CHECK(scr_now() - reached < HANG_NS);
    usleep(100);
  }
  CHECK(e->status == SAGECOMM_OK);
}
