// The functions and numbers of calls.cpp, compared with those of NVIDIA's nvml.h, which go-nvml brings: nvml_test.go compiles it.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <cstddef>
#include <type_traits>

// The functions of calls.cpp get names of their own.
#define nvmlInit ours_Init
#define nvmlInit_v2 ours_Init_v2
#define nvmlInitWithFlags ours_InitWithFlags
#define nvmlShutdown ours_Shutdown
#define nvmlErrorString ours_ErrorString
#define nvmlDeviceGetCount_v2 ours_DeviceGetCount_v2
#define nvmlDeviceGetHandleByIndex_v2 ours_DeviceGetHandleByIndex_v2
#define nvmlDeviceGetHandleByUUID ours_DeviceGetHandleByUUID
#define nvmlDeviceGetDeviceHandleFromMigDeviceHandle ours_DeviceGetDeviceHandleFromMigDeviceHandle
#define nvmlDeviceGetIndex ours_DeviceGetIndex
#define nvmlDeviceGetName ours_DeviceGetName
#define nvmlDeviceGetUUID ours_DeviceGetUUID
#define nvmlDeviceGetPciInfo_v3 ours_DeviceGetPciInfo_v3
#define nvmlDeviceGetMemoryInfo ours_DeviceGetMemoryInfo
#define nvmlDeviceGetCudaComputeCapability ours_DeviceGetCudaComputeCapability
#define nvmlDeviceGetNumaNodeId ours_DeviceGetNumaNodeId
#define nvmlDeviceGetCpuAffinity ours_DeviceGetCpuAffinity
#define nvmlDeviceGetTopologyCommonAncestor ours_DeviceGetTopologyCommonAncestor
#define nvmlDeviceGetP2PStatus ours_DeviceGetP2PStatus
#define nvmlDeviceGetNvLinkState ours_DeviceGetNvLinkState
#define nvmlDeviceGetNvLinkVersion ours_DeviceGetNvLinkVersion
#define nvmlDeviceGetNvLinkRemoteDeviceType ours_DeviceGetNvLinkRemoteDeviceType
#define nvmlDeviceGetNvLinkRemotePciInfo_v2 ours_DeviceGetNvLinkRemotePciInfo_v2
#include "../nvml/calls.cpp"
#undef nvmlInit
#undef nvmlInit_v2
#undef nvmlInitWithFlags
#undef nvmlShutdown
#undef nvmlErrorString
#undef nvmlDeviceGetCount_v2
#undef nvmlDeviceGetHandleByIndex_v2
#undef nvmlDeviceGetHandleByUUID
#undef nvmlDeviceGetDeviceHandleFromMigDeviceHandle
#undef nvmlDeviceGetIndex
#undef nvmlDeviceGetName
#undef nvmlDeviceGetUUID
#undef nvmlDeviceGetPciInfo_v3
#undef nvmlDeviceGetMemoryInfo
#undef nvmlDeviceGetCudaComputeCapability
#undef nvmlDeviceGetNumaNodeId
#undef nvmlDeviceGetCpuAffinity
#undef nvmlDeviceGetTopologyCommonAncestor
#undef nvmlDeviceGetP2PStatus
#undef nvmlDeviceGetNvLinkState
#undef nvmlDeviceGetNvLinkVersion
#undef nvmlDeviceGetNvLinkRemoteDeviceType
#undef nvmlDeviceGetNvLinkRemotePciInfo_v2

namespace {

// Whether the ABI passes both alike: pointers to as many bytes, or numbers of as many. go-nvml's nvmlDevice_t is a structure of a pointer.
template <class A, class B>
constexpr bool alike() {
  if constexpr (std::is_same_v<B, nvmlDevice_t>)
    return std::is_same_v<A, Device *>;
  else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>)
    return sizeof(std::remove_pointer_t<A>) == sizeof(std::remove_pointer_t<B>);
  else
    return !std::is_pointer_v<A> && !std::is_pointer_v<B> && sizeof(A) == sizeof(B);
}

template <class R, class... A, class S, class... B>
constexpr bool alike(R (*)(A...), S (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B))
    return alike<R, S>() && (alike<A, B>() && ...);
  else
    return false;
}

static_assert(alike(ours_Init_v2, nvmlInit_v2));
static_assert(alike(ours_InitWithFlags, nvmlInitWithFlags));
static_assert(alike(ours_Shutdown, nvmlShutdown));
static_assert(alike(ours_ErrorString, nvmlErrorString));
static_assert(alike(ours_DeviceGetCount_v2, nvmlDeviceGetCount_v2));
static_assert(alike(ours_DeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByIndex_v2));
static_assert(alike(ours_DeviceGetHandleByUUID, nvmlDeviceGetHandleByUUID));
static_assert(alike(ours_DeviceGetDeviceHandleFromMigDeviceHandle, nvmlDeviceGetDeviceHandleFromMigDeviceHandle));
static_assert(alike(ours_DeviceGetIndex, nvmlDeviceGetIndex));
static_assert(alike(ours_DeviceGetName, nvmlDeviceGetName));
static_assert(alike(ours_DeviceGetUUID, nvmlDeviceGetUUID));
static_assert(alike(ours_DeviceGetPciInfo_v3, nvmlDeviceGetPciInfo_v3));
static_assert(alike(ours_DeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo));
static_assert(alike(ours_DeviceGetCudaComputeCapability, nvmlDeviceGetCudaComputeCapability));
static_assert(alike(ours_DeviceGetNumaNodeId, nvmlDeviceGetNumaNodeId));
static_assert(alike(ours_DeviceGetCpuAffinity, nvmlDeviceGetCpuAffinity));
static_assert(alike(ours_DeviceGetTopologyCommonAncestor, nvmlDeviceGetTopologyCommonAncestor));
static_assert(alike(ours_DeviceGetP2PStatus, nvmlDeviceGetP2PStatus));
static_assert(alike(ours_DeviceGetNvLinkState, nvmlDeviceGetNvLinkState));
static_assert(alike(ours_DeviceGetNvLinkVersion, nvmlDeviceGetNvLinkVersion));
static_assert(alike(ours_DeviceGetNvLinkRemoteDeviceType, nvmlDeviceGetNvLinkRemoteDeviceType));
static_assert(alike(ours_DeviceGetNvLinkRemotePciInfo_v2, nvmlDeviceGetNvLinkRemotePciInfo_v2));

static_assert(offsetof(PciInfo, domain) == offsetof(nvmlPciInfo_t, domain) &&
              offsetof(PciInfo, device_id) == offsetof(nvmlPciInfo_t, pciDeviceId) &&
              offsetof(PciInfo, id) == offsetof(nvmlPciInfo_t, busId));
static_assert(offsetof(Memory, used) == offsetof(nvmlMemory_t, used));
static_assert(int{kSuccess} == NVML_SUCCESS && int{kUninitialized} == NVML_ERROR_UNINITIALIZED &&
              int{kInvalidArgument} == NVML_ERROR_INVALID_ARGUMENT && int{kNotSupported} == NVML_ERROR_NOT_SUPPORTED &&
              int{kNoPermission} == NVML_ERROR_NO_PERMISSION && int{kNotFound} == NVML_ERROR_NOT_FOUND &&
              int{kInsufficientSize} == NVML_ERROR_INSUFFICIENT_SIZE);

}  // namespace
