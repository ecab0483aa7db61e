#include "framework.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_streams = 8, most_entries = 64, most_copies = 32 };

/* A kernel of the framework: between two copies, a function of the host does it in pinned memory. */
typedef struct scaling {
  uint8_t dtype;
  bool divides;
  double by;
  void *at;
  uint64_t bytes;
} scaling;

typedef struct entry {
  enum { record, wait, copy, scale } what;
  uintptr_t stream, event;
  uintptr_t to, from, bytes;
  bool to_device;
  scaling *scaling;
} entry;

struct framework {
  sagecomm_bridge bridge;
  bool ascend, keeps_handles, kept, refuses;
  int asked; /* whether a signal has come */
  uintptr_t caller, streams[most_streams];
  int streams_n;
  entry queue[most_entries];
  int queued;
  uintptr_t joined; /* the event behind the operation */
  int copies;       /* of join_later(); -1: it was not called */
  sagecomm_copy list[most_copies];
  uintptr_t later;
  uint32_t *word, value;
  int (*make_stream)(uintptr_t *);
  int (*make_event)(uintptr_t *, unsigned);
  int (*record_event)(uintptr_t event, uintptr_t stream);
  void *wait_event, *copy_async, *malloc;
  int (*malloc_host)(void **, size_t);
  int (*call_host)(uintptr_t, void (*)(void *), void *);
  int (*synchronize)(uintptr_t);
};

static void check(int rc, const char *what) {
  if (rc == 0) return;
  fprintf(stderr, "framework: %s: %d\n", what, rc);
  abort();
}

static double scaled(const scaling *s, double x) { return s->divides ? x / s->by : x * s->by; }

static void scale_on_the_host(void *argument) {
  const scaling *s = argument;
  switch (s->dtype) {
    case SAGECOMM_FLOAT16:
      for (_Float16 *x = s->at; (char *)x < (char *)s->at + s->bytes; x++) *x = (_Float16)scaled(s, *x);
      return;
    case SAGECOMM_BFLOAT16: /* the first half of a float; what is cut off is 0 in the tests */
      for (uint16_t *x = s->at; (char *)x < (char *)s->at + s->bytes; x++) {
        uint32_t bits = (uint32_t)*x << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        value = (float)scaled(s, value);
        memcpy(&bits, &value, sizeof value);
        *x = (uint16_t)(bits >> 16);
      }
      return;
    case SAGECOMM_FLOAT32:
      for (float *x = s->at; (char *)x < (char *)s->at + s->bytes; x++) *x = (float)scaled(s, *x);
      return;
    default:
      fprintf(stderr, "framework: elements of type %d are not scaled\n", s->dtype);
      abort();
  }
}

static void run(framework *f, const entry *e) {
  int (*three)(uintptr_t, uintptr_t, unsigned);
  int (*five)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, int);
  int (*six)(uintptr_t, uintptr_t, uintptr_t, uintptr_t, int, uintptr_t);
  switch (e->what) {
    case record:
      check(f->record_event(e->event, e->stream), "record");
      return;
    case wait:
      *(void **)&three = f->wait_event;
      check(f->ascend ? three(e->stream, e->event, 0) : three(e->event, e->stream, 0), "wait");
      return;
    case copy:
      *(void **)&five = f->copy_async;
      *(void **)&six = f->copy_async;
      check(f->ascend ? six(e->to, e->bytes, e->from, e->bytes, e->to_device ? 1 : 2, e->stream)
                      : five(e->to, e->from, e->bytes, e->stream, e->to_device ? 0 : 2),
            "copy");
      return;
    case scale:
      check(f->call_host(e->stream, scale_on_the_host, e->scaling), "function of the host");
  }
}

static void push(framework *f, entry e) {
  if (f->queued == most_entries) abort();
  f->queue[f->queued++] = e;
}

void framework_drain(framework *f) {
  for (int i = 0; i < f->queued; i++) run(f, &f->queue[i]);
  f->queued = 0;
}

static uintptr_t event_of(framework *f) {
  uintptr_t event = 0;
  check(f->make_event(&event, f->ascend ? 1 : 4), "event");
  return event;
}

static int32_t make_stream(void *ctx, uint64_t *stream, char *why, size_t n) {
  framework *f = ctx;
  (void)why, (void)n;
  if (f->streams_n == most_streams) return -1;
  check(f->make_stream(&f->streams[f->streams_n]), "stream");
  *stream = (uint64_t)++f->streams_n;
  return 0;
}

static int32_t pin(void *ctx, uint64_t bytes, void **memory, void **owner, char *why, size_t n) {
  framework *f = ctx;
  (void)why, (void)n;
  check(f->malloc_host(owner, bytes + 4096), "pinned memory");
  *memory = (char *)*owner + (-(uintptr_t)*owner & 4095);
  return 0;
}

static int32_t fork_stream(void *ctx, uint64_t stream, char *why, size_t n) {
  framework *f = ctx;
  (void)why, (void)n;
  uintptr_t event = event_of(f);
  push(f, (entry){.what = record, .event = event, .stream = f->caller});
  push(f, (entry){.what = wait, .event = event, .stream = f->streams[stream - 1]});
  return 0;
}

static int32_t no(void *ctx, uint64_t stream, const sagecomm_copy *c, char *why, size_t n) {
  (void)ctx, (void)stream, (void)c;
  snprintf(why, n, "the runtime copies");
  return -1;
}

static int32_t no_value(void *ctx, uint64_t stream, uint32_t *word, uint32_t value, char *why, size_t n) {
  (void)ctx, (void)stream, (void)word, (void)value;
  snprintf(why, n, "the runtime writes values");
  return -1;
}

static int32_t no_adoption(void *ctx, void *handle, uint64_t *stream, char *why, size_t n) {
  (void)ctx, (void)handle, (void)stream;
  snprintf(why, n, "there are no external streams");
  return -1;
}

static int32_t join(void *ctx, uint64_t stream, char *why, size_t n) {
  framework *f = ctx;
  (void)why, (void)n;
  f->joined = event_of(f);
  push(f, (entry){.what = record, .event = f->joined, .stream = f->streams[stream - 1]});
  return 0;
}

static int32_t join_later(void *ctx, uint64_t stream, const sagecomm_copy *copies, uint32_t count, uint32_t *word,
                          uint32_t value, char *why, size_t n) {
  framework *f = ctx;
  (void)fork_stream(ctx, stream, why, n); /* the copies come behind what the caller's stream holds */
  f->copies = (int)count;
  if (count > most_copies) abort();
  if (count > 0) memcpy(f->list, copies, count * sizeof *copies);
  f->later = f->streams[stream - 1];
  f->word = word;
  f->value = value;
  return 0;
}

static int32_t stream_handle(void *ctx, uint64_t stream, void **handle, char *why, size_t n) {
  framework *f = ctx;
  (void)why, (void)n;
  if (!f->keeps_handles) framework_drain(f);
  *handle = (void *)f->streams[stream - 1];
  return 0;
}

static int32_t not_interrupted(void *ctx) {
  framework *f = ctx;
  __atomic_fetch_add(&f->asked, 1, __ATOMIC_RELAXED);
  return 0;
}

static int32_t keep(void *ctx, char *why, size_t n) {
  framework *f = ctx;
  if (f->refuses) {
    snprintf(why, n, "the framework frees what it likes");
    return -1;
  }
  f->kept = true;
  return 0;
}

/* Puts a kernel into a stream, by the queue. */
static void push_scaling(framework *f, uint64_t stream, uint8_t dtype, bool divides, double by, uintptr_t to,
                         uintptr_t from, uint64_t bytes) {
  const uintptr_t on = f->streams[stream - 1];
  scaling *s = malloc(sizeof *s);
  if (s == NULL) abort();
  *s = (scaling){.dtype = dtype, .divides = divides, .by = by, .bytes = bytes};
  check(f->malloc_host(&s->at, bytes), "pinned memory");
  push(f,
       (entry){.what = copy, .stream = on, .to = (uintptr_t)s->at, .from = from, .bytes = bytes, .to_device = false});
  push(f, (entry){.what = scale, .stream = on, .scaling = s});
  push(f, (entry){.what = copy, .stream = on, .to = to, .from = (uintptr_t)s->at, .bytes = bytes, .to_device = true});
}

static int32_t multiply(void *ctx, uint64_t stream, uint8_t dtype, const sagecomm_segment *pieces, uint32_t count,
                        double factor, void **product, char *why, size_t n) {
  framework *f = ctx;
  (void)why, (void)n;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) bytes += pieces[i].bytes;
  int (*ascend)(void **, size_t, int);
  int (*cambricon)(void **, size_t);
  *(void **)&ascend = f->malloc;
  *(void **)&cambricon = f->malloc;
  check(f->ascend ? ascend(product, bytes, 0) : cambricon(product, bytes), "memory");
  uintptr_t to = (uintptr_t)*product;
  for (uint32_t i = 0; i < count; to += pieces[i++].bytes)
    push_scaling(f, stream, dtype, false, factor, to, (uintptr_t)pieces[i].data, pieces[i].bytes);
  return 0;
}

static int32_t divide(void *ctx, uint64_t stream, uint8_t dtype, const sagecomm_segment *pieces, uint32_t count,
                      double divisor, char *why, size_t n) {
  (void)why, (void)n;
  for (uint32_t i = 0; i < count; i++) {
    const uintptr_t at = (uintptr_t)pieces[i].data;
    push_scaling(ctx, stream, dtype, true, divisor, at, at, pieces[i].bytes);
  }
  return 0;
}

framework *framework_new(const char *library, const char *device_name, uintptr_t caller) {
  framework *f = calloc(1, sizeof *f);
  void *vendor = dlopen(library, RTLD_NOW);
  if (f == NULL || vendor == NULL) return NULL;
  f->ascend = strcmp(device_name, "npu") == 0;
  f->caller = caller;
  f->copies = -1;
  *(void **)&f->make_stream = dlsym(vendor, f->ascend ? "aclrtCreateStream" : "cnrtQueueCreate");
  *(void **)&f->make_event = dlsym(vendor, f->ascend ? "aclrtCreateEventExWithFlag" : "cnrtNotifierCreateWithFlags");
  *(void **)&f->record_event = dlsym(vendor, f->ascend ? "aclrtRecordEvent" : "cnrtPlaceNotifier");
  *(void **)&f->malloc_host = dlsym(vendor, f->ascend ? "aclrtMallocHost" : "cnrtHostMalloc");
  *(void **)&f->synchronize = dlsym(vendor, f->ascend ? "aclrtSynchronizeStream" : "cnrtQueueSync");
  f->wait_event = dlsym(vendor, f->ascend ? "aclrtStreamWaitEvent" : "cnrtQueueWaitNotifier");
  *(void **)&f->call_host = dlsym(vendor, f->ascend ? "aclrtLaunchHostFunc" : "cnrtInvokeHostFunc");
  f->malloc = dlsym(vendor, f->ascend ? "aclrtMalloc" : "cnrtMalloc");
  f->copy_async = dlsym(vendor, f->ascend ? "aclrtMemcpyAsync" : "cnrtMemcpyAsync_V2");
  if (!f->make_stream || !f->make_event || !f->record_event || !f->malloc_host || !f->synchronize || !f->wait_event ||
      !f->copy_async || !f->call_host || !f->malloc)
    return NULL;
  f->bridge = (sagecomm_bridge){.struct_size = sizeof f->bridge,
                                .ctx = f,
                                .make_stream = make_stream,
                                .pin = pin,
                                .fork = fork_stream,
                                .copy_in = no,
                                .write_value = no_value,
                                .adopt_stream = no_adoption,
                                .join = join,
                                .join_later = join_later,
                                .device_name = device_name,
                                .stream_handle = stream_handle,
                                .interrupted = not_interrupted,
                                .keep = keep,
                                .multiply = multiply,
                                .divide = divide};
  return f;
}

const sagecomm_bridge *framework_bridge(framework *f) { return &f->bridge; }
void framework_keeps_handles(framework *f, bool keeps) { f->keeps_handles = keeps; }
bool framework_kept(const framework *f) { return f->kept; }
int framework_asked(const framework *f) { return __atomic_load_n(&f->asked, __ATOMIC_RELAXED); }
void framework_refuses_to_keep(framework *f) { f->refuses = true; }
void framework_is_older(framework *f) { f->bridge.struct_size = offsetof(sagecomm_bridge, keep); }
void framework_scales_not(framework *f) { f->bridge.struct_size = offsetof(sagecomm_bridge, multiply); }
void framework_may_be_captured(framework *f) { f->bridge.may_be_captured = 1; }

void framework_copy(framework *f, uintptr_t to, uintptr_t from, uintptr_t bytes, bool to_device) {
  push(f, (entry){.what = copy, .stream = f->caller, .to = to, .from = from, .bytes = bytes, .to_device = to_device});
}

void framework_wait(framework *f) { push(f, (entry){.what = wait, .event = f->joined, .stream = f->caller}); }
int framework_queued(const framework *f) { return f->queued; }

int framework_end(const framework *f, sagecomm_copy *first, uintptr_t *stream, uint32_t **word, uint32_t *value) {
  *first = f->list[0];
  *stream = f->later;
  *word = f->word;
  *value = f->value;
  return f->copies;
}

void framework_finish(framework *f) {
  if (f->copies < 0) {
    framework_wait(f);
    return;
  }
  for (int i = 0; i < f->copies; i++)
    push(f, (entry){.what = copy,
                    .stream = f->later,
                    .to = (uintptr_t)f->list[i].to,
                    .from = (uintptr_t)f->list[i].from,
                    .bytes = f->list[i].bytes,
                    .to_device = true});
  framework_drain(f);
  check(f->synchronize(f->later), "synchronize");
  __atomic_store_n(f->word, f->value, __ATOMIC_RELEASE);
  f->copies = -1;
}
