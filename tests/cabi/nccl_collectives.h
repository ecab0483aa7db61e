/* nccl_collectives.h: the parts of nccl.c that call collectives, sends and recvs. It is included once, behind
 * nccl_ranks.h. */

/* ---- values of all types ---- */

static const size_t widths[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
enum { COUNT = 37, MOST = 8 * COUNT };

/* Small numbers are exact in every type. */
static void put(void *at, ncclDataType_t type, size_t i, double value) {
  float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  switch (type) {
    case ncclInt8:
      ((int8_t *)at)[i] = (int8_t)value;
      break;
    case ncclUint8:
      ((uint8_t *)at)[i] = (uint8_t)value;
      break;
    case ncclInt32:
      ((int32_t *)at)[i] = (int32_t)value;
      break;
    case ncclUint32:
      ((uint32_t *)at)[i] = (uint32_t)value;
      break;
    case ncclInt64:
      ((int64_t *)at)[i] = (int64_t)value;
      break;
    case ncclUint64:
      ((uint64_t *)at)[i] = (uint64_t)value;
      break;
    case ncclFloat16: {
      uint16_t half = 0;
      if (value != 0) half = (uint16_t)(((bits >> 23 & 255) - 112) << 10 | (bits >> 13 & 1023));
      ((uint16_t *)at)[i] = half;
      break;
    }
    case ncclFloat32:
      ((float *)at)[i] = single;
      break;
    case ncclFloat64:
      ((double *)at)[i] = value;
      break;
    case ncclBfloat16:
      ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
      break;
    default:
      ((uint8_t *)at)[i] = (uint8_t)value;
      break; /* moved only */
  }
}

static void fill(void *at, ncclDataType_t type, size_t n, int from, size_t first) {
  for (size_t i = 0; i < n; i++) put(at, type, i, (double)((from + 1) * ((first + i) % 3 + 1)));
}

static void same(const void *at, const void *wanted, size_t bytes, const char *what, ncclDataType_t type) {
  if (memcmp(at, wanted, bytes) == 0) return;
  fprintf(stderr, "rank %d: %s of type %d has a wrong result\n", my_rank, what, type);
  _exit(1);
}

static double reduced(ncclRedOp_t op, int size, size_t i, double factor) {
  double value = 0;
  for (int rank = 0; rank < size; rank++) {
    double one = (double)((rank + 1) * (int)(i % 3 + 1));
    switch (op) {
      case ncclProd:
        value = rank == 0 ? one : value * one;
        break;
      case ncclMax:
        value = rank == 0 || one > value ? one : value;
        break;
      case ncclMin:
        value = rank == 0 || one < value ? one : value;
        break;
      default:
        value += one;
        break;
    }
  }
  if (op == ncclAvg) value /= size;
  return op > ncclAvg ? value * factor : value;
}

/* ---- collectives ---- */

static bool floating(ncclDataType_t type) {
  return type == ncclFloat16 || type == ncclFloat32 || type == ncclFloat64 || type == ncclBfloat16;
}

static void reductions(ncclComm_t comm, int size) {
  static _Thread_local uint64_t from[MOST], to[MOST], wanted[MOST];
  for (ncclDataType_t type = 0; type < ncclFloat8e4m3; type++) {
    for (int op = 0; op <= ncclNumOps; op++) {
      ncclRedOp_t with = (ncclRedOp_t)op;
      double factor = 0.5;
      char scalar[8];
      if (op == ncclAvg && (!floating(type) || (size & (size - 1)) != 0)) continue; /* does not come out even */
      if (op == ncclProd && size > 4) continue;                                     /* too large for 8 bits */
      if (op == ncclNumOps) {
        put(scalar, type, 0, factor);
        ncclScalarResidence_t residence = type == ncclFloat32 ? ncclScalarDevice : ncclScalarHostImmediate;
        ncclResult_t made = ncclRedOpCreatePreMulSum(&with, scalar, type, residence, comm);
        if (!floating(type)) {
          expect(made, ncclInvalidUsage, comm, "PREMUL_SUM is not defined for");
          continue;
        }
        OK(made);
      }
      size_t all = (size_t)size * COUNT, block = COUNT * widths[type];
      fill(from, type, all, my_rank, 0);
      for (size_t i = 0; i < all; i++) put(wanted, type, i, reduced((ncclRedOp_t)op, size, i, factor));

      OK(ncclAllReduce(from, to, all, type, with, comm, NULL));
      same(to, wanted, all * widths[type], "AllReduce", type);
      memcpy(to, from, all * widths[type]);
      OK(ncclAllReduce(to, to, all, type, with, comm, NULL));
      same(to, wanted, all * widths[type], "AllReduce in place", type);

      int root = size - 1;
      OK(ncclReduce(from, my_rank == root ? to : NULL, all, type, with, root, comm, NULL));
      if (my_rank == root) same(to, wanted, all * widths[type], "Reduce", type);
      memcpy(to, from, all * widths[type]);
      OK(ncclReduce(to, to, all, type, with, root, comm, NULL));
      if (my_rank == root) same(to, wanted, all * widths[type], "Reduce in place", type);

      char *mine = (char *)to + (size_t)my_rank * block, *part = (char *)wanted + (size_t)my_rank * block;
      OK(ncclReduceScatter(from, to, COUNT, type, with, comm, NULL));
      same(to, part, block, "ReduceScatter", type);
      memcpy(to, from, all * widths[type]);
      OK(ncclReduceScatter(to, mine, COUNT, type, with, comm, NULL));
      same(mine, part, block, "ReduceScatter in place", type);
      if (op == ncclNumOps) {
        ncclDataType_t other = type == ncclFloat64 ? ncclFloat32 : ncclFloat64;
        expect(ncclAllReduce(from, to, 1, other, with, comm, NULL), ncclInvalidArgument, comm,
               "was made for data type");
        OK(ncclRedOpDestroy(with, comm));
        expect(ncclRedOpDestroy(with, comm), ncclInvalidArgument, comm, "was not made for this communicator");
        expect(ncclAllReduce(from, to, 1, type, with, comm, NULL), ncclInvalidArgument, comm, "was not made for this");
      }
    }
  }
  expect(ncclAllReduce(from, to, 1, ncclFloat8e4m3, ncclSum, comm, NULL), ncclInvalidUsage, comm,
         "SUM is not defined for");
}

static void moves(ncclComm_t comm, int size) {
  static _Thread_local uint64_t from[MOST], to[MOST], wanted[MOST];
  for (ncclDataType_t type = 0; type < ncclNumTypes; type++) {
    size_t all = (size_t)size * COUNT, block = COUNT * widths[type];
    for (int rank = 0; rank < size; rank++) fill((char *)wanted + (size_t)rank * block, type, COUNT, rank, 0);
    char *mine = (char *)to + (size_t)my_rank * block;
    fill(from, type, COUNT, my_rank, 0);
    OK(ncclAllGather(from, to, COUNT, type, comm, NULL));
    same(to, wanted, all * widths[type], "AllGather", type);
    memset(to, 0, sizeof to);
    memcpy(mine, from, block);
    OK(ncclAllGather(mine, to, COUNT, type, comm, NULL));
    same(to, wanted, all * widths[type], "AllGather in place", type);

    int root = size / 2;
    char *of_root = (char *)wanted + (size_t)root * block;
    memset(to, 0, sizeof to);
    OK(ncclBroadcast(my_rank == root ? from : NULL, to, COUNT, type, root, comm, NULL));
    same(to, of_root, block, "Broadcast", type);
    memcpy(to, from, block);
    OK(ncclBroadcast(to, to, COUNT, type, root, comm, NULL));
    same(to, of_root, block, "Broadcast in place", type);
    memcpy(to, from, block);
    OK(ncclBcast(to, COUNT, type, root, comm, NULL));
    same(to, of_root, block, "Bcast", type);

    memset(to, 0, sizeof to);
    OK(ncclGather(from, my_rank == root ? to : NULL, COUNT, type, root, comm, NULL));
    if (my_rank == root) same(to, wanted, all * widths[type], "Gather", type);
    memset(to, 0, sizeof to);
    memcpy(mine, from, block);
    OK(ncclGather(mine, to, COUNT, type, root, comm, NULL));
    if (my_rank == root) same(to, wanted, all * widths[type], "Gather in place", type);
    OK(ncclScatter(my_rank == root ? wanted : NULL, to, COUNT, type, root, comm, NULL));
    same(to, (char *)wanted + (size_t)my_rank * block, block, "Scatter", type);
    memcpy(to, wanted, all * widths[type]);
    if (my_rank != root) memset(to, 0, sizeof to);
    OK(ncclScatter(to, mine, COUNT, type, root, comm, NULL));
    same(mine, (char *)wanted + (size_t)my_rank * block, block, "Scatter in place", type);

    for (int rank = 0; rank < size; rank++) { /* block i is for rank i and has numbers of its own */
      fill((char *)from + (size_t)rank * block, type, COUNT, my_rank, (size_t)rank);
      fill((char *)wanted + (size_t)rank * block, type, COUNT, rank, (size_t)my_rank);
    }
    OK(ncclAlltoAll(from, to, COUNT, type, comm, NULL));
    same(to, wanted, all * widths[type], "AlltoAll", type);
    if (size > 1) expect(ncclAlltoAll(to, to, COUNT, type, comm, NULL), ncclInvalidArgument, comm, "in place");

    memset(to, 0, sizeof to);
    OK(ncclGroupStart());
    for (int rank = 0; rank < size; rank++) {
      OK(ncclRecv((char *)to + (size_t)rank * block, COUNT, type, rank, comm, NULL));
      OK(ncclSend((char *)from + (size_t)rank * block, COUNT, type, rank, comm, NULL));
    }
    OK(ncclGroupEnd());
    same(to, wanted, all * widths[type], "Send and Recv", type);
  }
  OK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, comm, NULL));
}

/* Blocks of different lengths, as torch and TurboMind gather and scatter them, in groups inside groups. */
static void groups(ncclComm_t comm, int size) {
  int32_t mine[8], all[64], sums[64], start[9] = {0};
  for (int rank = 0; rank < size; rank++) start[rank + 1] = start[rank] + rank + 1;
  for (int i = 0; i <= my_rank; i++) mine[i] = 100 * my_rank + i;
  for (int i = 0; i < start[size]; i++) sums[i] = i * (my_rank + 1);
  OK(ncclGroupStart());
  for (int root = 0; root < size; root++) {
    OK(ncclGroupStart());
    OK(ncclBroadcast(my_rank == root ? mine : NULL, all + start[root], (size_t)root + 1, ncclInt32, root, comm, NULL));
    OK(ncclGroupEnd());
  }
  OK(ncclGroupEnd());
  for (int rank = 0; rank < size; rank++) {
    for (int i = 0; i <= rank; i++) CHECK(all[start[rank] + i] == 100 * rank + i);
  }
  int32_t got[8];
  OK(ncclGroupStart());
  for (int root = 0; root < size; root++) {
    OK(ncclReduce(sums + start[root], root == my_rank ? got : NULL, (size_t)root + 1, ncclInt32, ncclSum, root, comm,
                  NULL));
  }
  OK(ncclGroupEnd());
  for (int i = 0; i <= my_rank; i++) CHECK(got[i] == (start[my_rank] + i) * size * (size + 1) / 2);

  /* A call that is refused makes the whole group fail, and nothing is sent. */
  OK(ncclGroupStart());
  OK(ncclAllReduce(mine, all, 1, ncclInt32, ncclSum, comm, NULL));
  expect(ncclAllReduce(mine, all, 1, (ncclDataType_t)77, ncclSum, comm, NULL), ncclInvalidArgument, comm,
         "data type 77");
  CHECK(ncclGroupEnd() == ncclInvalidArgument);
  expect(ncclGroupEnd(), ncclInvalidUsage, NULL, "no ncclGroupStart() came before it");
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  OK(ncclGroupStart());
  expect(ncclGroupSimulateEnd(&info), ncclInvalidUsage, NULL, "is not supported");
  OK(ncclGroupStart());
  OK(ncclGroupEnd());
}
