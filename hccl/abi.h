/* abi.h: the types and numbers of HCCL's interface that this library uses. The declarations are our own. Each row names
 * the line of third_party/hccl/inc/hccl/hccl_types.h at commit 9e73e708 of github.com/Ascend/pytorch that it
 * follows. */
#ifndef SAGECOMM_HCCL_ABI_H
#define SAGECOMM_HCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
  HCCL_SUCCESS = 0,              /* :24 */
  HCCL_E_PARA = 1,               /* :25 */
  HCCL_E_PTR = 2,                /* :26 */
  HCCL_E_MEMORY = 3,             /* :27 */
  HCCL_E_INTERNAL = 4,           /* :28 */
  HCCL_E_NOT_SUPPORT = 5,        /* :29 */
  HCCL_E_NOT_FOUND = 6,          /* :30 */
  HCCL_E_UNAVAIL = 7,            /* :31 */
  HCCL_E_SYSCALL = 8,            /* :32 */
  HCCL_E_TIMEOUT = 9,            /* :33 */
  HCCL_E_OPEN_FILE_FAILURE = 10, /* :34 */
  HCCL_E_TCP_CONNECT = 11,       /* :35 */
  HCCL_E_ROCE_CONNECT = 12,      /* :36 */
  HCCL_E_TCP_TRANSFER = 13,      /* :37 */
  HCCL_E_ROCE_TRANSFER = 14,     /* :38 */
  HCCL_E_RUNTIME = 15,           /* :39 */
  HCCL_E_DRV = 16,               /* :40 */
  HCCL_E_PROFILING = 17,         /* :41 */
  HCCL_E_CCE = 18,               /* :42 */
  HCCL_E_NETWORK = 19,           /* :43 */
  HCCL_E_AGAIN = 20,             /* :44 */
  HCCL_E_REMOTE = 21,            /* :45 */
  HCCL_E_SUSPENDING = 22,        /* :46 */
  HCCL_E_OPRETRY_FAIL = 23,      /* :47 */
  HCCL_E_OOM = 24,               /* :48 */
  HCCL_E_RESERVED = 25           /* :49 */
} HcclResult;

typedef void *HcclComm;   /* :55 */
typedef void *HcclStream; /* aclrtStream */

enum { HCCL_REDUCE_SUM = 0, HCCL_REDUCE_PROD = 1, HCCL_REDUCE_MAX = 2, HCCL_REDUCE_MIN = 3 }; /* :61 */

enum {
  HCCL_INT8 = 0,     /* :72 */
  HCCL_INT16 = 1,    /* :73 */
  HCCL_INT32 = 2,    /* :74 */
  HCCL_FP16 = 3,     /* :75 */
  HCCL_FP32 = 4,     /* :76 */
  HCCL_INT64 = 5,    /* :77 */
  HCCL_UINT64 = 6,   /* :78 */
  HCCL_UINT8 = 7,    /* :79 */
  HCCL_UINT16 = 8,   /* :80 */
  HCCL_UINT32 = 9,   /* :81 */
  HCCL_FP64 = 10,    /* :82 */
  HCCL_BFP16 = 11,   /* :83 */
  HCCL_INT128 = 12,  /* :84 */
  HCCL_HIF8 = 14,    /* :85 */
  HCCL_FP8E4M3 = 15, /* :86 */
  HCCL_FP8E5M2 = 16, /* :87 */
  HCCL_FP8E8M0 = 17, /* :88 */
  HCCL_TYPES = 18
};

enum { HCCL_DETERMINISTIC = 0, HCCL_ACCELERATOR = 1 }; /* HcclConfig, :92 */

typedef union HcclConfigValue { /* :100 */
  int32_t value;
} HcclConfigValue;

enum {
  HCCL_ROOT_INFO_BYTES = 4108, /* :104 */
  HCCL_NAME_BYTES = 128        /* COMM_NAME_MAX_LENGTH, :106 */
};

typedef struct HcclRootInfo { /* :114 */
  char internal[HCCL_ROOT_INFO_BYTES];
} HcclRootInfo;

#define HCCL_CONFIG_MAGIC 0xf0f0f0f0U /* :119 */
#define HCCL_NOT_SET 0xffffffffU      /* :122 */

/* It grows at its end; `size` says how much of it the caller knows. */
typedef struct HcclCommConfig { /* :132 */
  size_t size;                  /* with the next three, HcclCommConfigInit()'s own view of `reserved` */
  uint32_t magic, version;
  uint64_t reserved;
  uint32_t buffer_size, deterministic;
  char name[HCCL_NAME_BYTES], udi[128];
  uint32_t op_expansion_mode, traffic_class, service_level, world_rank;
  uint64_t job;
  uint8_t zero_copy;
  int32_t exec_timeout; /* seconds; 0: never; HCCL_NOT_SET */
} HcclCommConfig;

/* HcclCommConfigCapability, :152. The answer to HcclGetCommConfigCapability() is one more than the last field that is
 * known. */
enum { HCCL_CONFIG_NAME = 2, HCCL_CONFIG_EXEC_TIMEOUT = 8 };

enum { HCCL_SEND = 0, HCCL_RECV = 1 }; /* :168 */

typedef struct HcclSendRecvItem { /* :174 */
  int32_t type;                   /* HCCL_SEND, HCCL_RECV */
  void *buffer;
  uint64_t count;
  int32_t data_type;
  uint32_t peer;
} HcclSendRecvItem;

_Static_assert(sizeof(HcclRootInfo) == 4108, "root info");
_Static_assert(offsetof(HcclCommConfig, buffer_size) == 24 && offsetof(HcclCommConfig, name) == 32 &&
                   offsetof(HcclCommConfig, op_expansion_mode) == 288 && offsetof(HcclCommConfig, job) == 304 &&
                   offsetof(HcclCommConfig, exec_timeout) == 316,
               "config");

/* What the frame (../facade) asks for. */
#define FACADE_COMM hccl_comm
#define FACADE_MARK sagecomm_hccl_facade
#define FACADE_NAME "hccl"
#define FACADE_PREFIX "Hccl"
#define FACADE_FILE "libsagecomm_hccl.so"
#define FACADE_DRIVER "AscendCL"
#define FACADE_STREAM_OF_THREAD 0 /* there is none */
#define FACADE_STREAM_DEFAULT 0   /* besides NULL; there is none */
#define FACADE_DEVICE_TYPE 20     /* c10::DeviceType::PrivateUse1 */
#define FACADE_IN_PROGRESS "the previous call on this communicator goes on"
#define FACADE_JOIN_NS (hccl_seconds("HCCL_CONNECT_TIMEOUT", 120) * SECOND)
#define FACADE_OPERATIONS_NS (hccl_operations_ns(hccl_seconds("HCCL_EXEC_TIMEOUT", 1836)))

typedef HcclResult facade_result;
#define RESULT_OK HCCL_SUCCESS
#define RESULT_IN_PROGRESS HCCL_E_AGAIN
#define RESULT_ARGUMENT HCCL_E_PARA
#define RESULT_NULL HCCL_E_PTR
#define RESULT_USAGE HCCL_E_PARA
#define RESULT_UNSUPPORTED HCCL_E_NOT_SUPPORT
#define RESULT_REMOTE HCCL_E_REMOTE
#define RESULT_TIMEOUT HCCL_E_TIMEOUT
#define RESULT_SYSTEM HCCL_E_SYSCALL
#define RESULT_MEMORY HCCL_E_MEMORY
#define RESULT_DRIVER HCCL_E_RUNTIME
#define RESULT_INTERNAL HCCL_E_INTERNAL

extern int sagecomm_hccl_facade;

/* Returns HCCL's own setting of seconds from the environment. */
int64_t hccl_seconds(const char *variable, int64_t otherwise);
/* Returns the timeout of operations for a number of seconds; 0 stands for none. */
int64_t hccl_operations_ns(int64_t seconds);

#endif
