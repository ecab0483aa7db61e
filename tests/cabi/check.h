/* check.h: how a program of several ranks ends when something does not hold. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <unistd.h>

static int my_rank;

#define CHECK(condition)                                                                              \
  do {                                                                                                \
    if (!(condition)) {                                                                               \
      fprintf(stderr, "rank %d: %s:%d: %s does not hold\n", my_rank, __FILE__, __LINE__, #condition); \
      _exit(1);                                                                                       \
    }                                                                                                 \
  } while (0)

#endif
