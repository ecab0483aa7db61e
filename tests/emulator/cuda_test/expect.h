// What programs of this folder expect of a call: the process ends if it gives something else.
#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>
#include <stdlib.h>

#define IS(call, expected)                                                                                \
  do {                                                                                                    \
    long long got_ = (long long)(call), expected_ = (long long)(expected);                                \
    if (got_ != expected_) {                                                                              \
      fprintf(stderr, "%s:%d: %s is %lld instead of %lld\n", __FILE__, __LINE__, #call, got_, expected_); \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)
#define OK(call) IS(call, CUDA_SUCCESS)

#endif
