//go:build !release

package main

/*
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sagecomm.h"

// A lasting store of one key, for tests.
typedef struct { char key[64], value[64]; size_t n; int prepared, released, refuses; } test_store;

static int32_t test_prepare(void *ctx, void **claimer, char *why, size_t why_n) {
  test_store *s = ctx;
  s->prepared++;
  *claimer = s;
  if (s->refuses) snprintf(why, why_n, "it does not last");
  return s->refuses ? -1 : 0;
}

static int32_t test_claim(void *claimer, const char *key, const void *data, size_t n, void *sink_ctx,
                          void (*sink)(void *sink_ctx, const void *data, size_t n), char *why, size_t why_n) {
  test_store *s = claimer;
  if (n > sizeof s->value) {
    snprintf(why, why_n, "%zu bytes are too long", n);
    return -1;
  }
  if (s->key[0] == 0) {
    snprintf(s->key, sizeof s->key, "%s", key);
    memcpy(s->value, data, n);
    s->n = n;
  }
  sink(sink_ctx, s->value, s->n);
  return 0;
}

static void test_release(void *claimer) { ((test_store *)claimer)->released++; }

// Returns a configuration of a caller that has the field `lasting`, or of one that was compiled before.
static sagecomm_group_config *test_config(int refuses, int old) {
  test_store *s = calloc(1, sizeof *s);
  sagecomm_lasting_store *lasting = calloc(1, sizeof *lasting);
  sagecomm_group_config *config = calloc(1, sizeof *config);
  s->refuses = refuses;
  *lasting = (sagecomm_lasting_store){s, test_prepare, test_claim, test_release};
  *config = (sagecomm_group_config){.struct_size = old ? offsetof(sagecomm_group_config, lasting) : sizeof *config, .lasting = lasting};
  return config;
}

// Ends the configuration and its structures, as the return of group_create() does.
static test_store *test_created(sagecomm_group_config *config) {
  sagecomm_lasting_store *lasting = (sagecomm_lasting_store *)(uintptr_t)config->lasting;
  test_store *s = lasting->ctx;
  memset(lasting, 0xff, sizeof *lasting);
  free(lasting);
  free(config);
  return s;
}

// Takes one of the functions out.
static void test_without(sagecomm_group_config *config, int missing) {
  sagecomm_lasting_store *lasting = (sagecomm_lasting_store *)(uintptr_t)config->lasting;
  if (missing == 0) lasting->prepare = NULL;
  if (missing == 1) lasting->claim = NULL;
  if (missing == 2) lasting->release = NULL;
}

static int test_prepared(const test_store *s) { return s->prepared; }
static int test_released(const test_store *s) { return s->released; }
*/
import "C"

import "sagecomm/internal/bootstrap"

// lastFromC makes a store of a C caller last as group_create() does, and returns it with counters of its calls. old is a caller that
// was compiled before the configuration had the field.
func lastFromC(refuses, old bool) (c bootstrap.Claimer, absent bool, prepared, released func() int, err error) {
	number := func(b bool) C.int {
		if b {
			return 1
		}
		return 0
	}
	config := C.test_config(number(refuses), number(old))
	lasting := newLasting(config)
	if lasting != nil {
		c, err = lasting.Last()
	}
	s := C.test_created(config)
	return c, lasting == nil, func() int { return int(C.test_prepared(s)) }, func() int { return int(C.test_released(s)) }, err
}

// lastWithout does so for a caller whose structure has no function of a number.
func lastWithout(missing int) error {
	config := C.test_config(0, 0)
	C.test_without(config, C.int(missing))
	_, err := newLasting(config).Last()
	C.test_created(config)
	return err
}
