"""Tests of torch that do not pass on sagecomm.

The list may only shrink: run.py fails on an entry that passes or is not run, and on more than MOST entries.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 5


@dataclass(frozen=True)
class Difference:
    configurations: frozenset[str]  # of run.py, in which the test fails
    reason: str


OWN_NAME = frozenset({"own", "own_hosts", "network_2x1", "network_2x2", "network_4x2", "eight"})
EVERY_NAME = OWN_NAME | {"masquerade", "eight_masquerade", "cuda"}
BRANCHES = "the test makes its model in branches for the names gloo, nccl and mpi, and uses it after them"

DIFFERENCES = {
    "test_ddp_logging_data_cpu": Difference(
        EVERY_NAME, "the test expects DDP to log the backend's name; torch logs every plugin's as 'custom'"
    ),
    "test_accumulate_gradients_no_sync": Difference(OWN_NAME, BRANCHES),
    "test_accumulate_gradients_no_sync_allreduce_hook": Difference(OWN_NAME, BRANCHES),
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": Difference(OWN_NAME, BRANCHES),
    "test_accumulate_gradients_no_sync_grad_is_view": Difference(OWN_NAME, BRANCHES),
}

_BATCH_NORM = "SyncBatchNorm has kernels of CUDA's alone, which fake CUDA does not have"
_NCCL = "the test makes groups of NCCL, which is a stub of one rank under fake CUDA"

# What fails on the emulated devices, with gloo as well.
ON_EMULATED_DEVICES = {
    "test_DistributedDataParallel_SyncBatchNorm": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_2D_Input": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Channels_Last": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_Running_Value": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Diff_Input_Sizes_gradient": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_No_Affine": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_Single_Input_Per_Process": _BATCH_NORM,
    "test_DistributedDataParallel_SyncBatchNorm_half": _BATCH_NORM,
    "test_ddp_uneven_inputs_stop_iteration_sync_bn": _BATCH_NORM,
    "test_average_parameters": _NCCL,
    "test_monitored_barrier_allreduce_hang": _NCCL,
    "test_monitored_barrier_allreduce_hang_wait_all_ranks": _NCCL,
    "test_DistributedDataParallel_with_amp_and_grad_is_view": "the CPU has no softmax from half to float",
    "test_ddp_profiling_torch_profiler": "CUDA's profiler ends the process beside a driver that it does not know",
    "test_sparse_all_reduce_sum_cuda": "sagecomm refuses sparse tensors of devices (docs/devices.md)",
}

_WARNING = "the installed torch gives no such warning yet"
_SLEEP = "fake CUDA has no kernel that sleeps"

_TORCH = "torch 2.15 does it in another way than the release whose tests these are (docs/torch-suites.md)"
_KERNEL = "the test needs a kernel that fake CUDA does not have"

_VERSION = "the test compares the version of NCCL that torch was built with, and ncclGetVersion() gives 2.27.7"

# What fails of test_c10d_nccl.py of torch 2.9.1, in the classes that have run.
ON_C10D_NCCL = {
    **{
        f"NCCLTraceTest.test_short_{form}_timing_enabled_{timing}_include_collectives_{collectives}": _VERSION
        for form in ("json", "pickle")
        for timing in (False, True)
        for collectives in (False, True)
    },
    "NCCLTraceTest.test_trace_while_active_timing_enabled_True_only_active_False": (
        "an emulated stream begins a collective later than the test looks whether it has begun"
    ),
    "CommTest.test_intra_node_comm_all_reduce": "torch's IntraNodeComm ends the process by SIGSEGV under fake CUDA",
    "CommTest.test_pass_nccl_options_config": "the test reads NCCL's own log of its configuration",
    "CommTest.test_time_estimate_nccl": "ncclGroupSimulateEnd is not there (docs/nccl.md)",
    "CommTest.test_unwaited": "50,000 collectives of 4 MiB take longer than a test may",
    "DistributedDataParallelTest.test_ddp_packed_sequence": _KERNEL,
    "DistributedDataParallelTest.test_grad_layout_1devicemodule_1replicaperprocess": _KERNEL,
    "DistributedDataParallelTest.test_grad_layout_2devicemodule": _KERNEL,
    "DistributedDataParallelTest.test_sync_batch_norm_empty_input": _KERNEL,
    "DistributedDataParallelTest.test_sync_batch_norm_only_empty_input": _KERNEL,
    "LargeCommTest.test_new_group_local_sync": _TORCH,
    "ProcessGroupNCCLGroupTest.test_extend_nccl_pg_timeout_backend0": _TORCH,
    "ProcessGroupNCCLGroupTest.test_extend_nccl_pg_timeout_backend_nccl": _TORCH,
    "ProcessGroupNCCLGroupTest.test_nan_assert_float16": "the test takes 4 GiB, which an emulated device has in all",
    "ProcessGroupNCCLGroupTest.test_nan_check": _KERNEL,
    "ProcessGroupNCCLGroupTest.test_nan_rank_filter": _KERNEL,
    "ProcessGroupNCCLGroupTest.test_nccl_dist_backend_error": "two ranks may share a device here (docs/nccl.md)",
    "SparseCollective.test_ddp_set_sparse_metadata": _KERNEL,
    "WorkHookTest.test_on_completion_hook_all_gather_object": _TORCH,
}

# What fails in one configuration for reasons that are not the name's.
OF_ONE_CONFIGURATION: dict[str, dict[str, str]] = {
    "cuda": ON_EMULATED_DEVICES,
    "c10d_nccl": ON_C10D_NCCL,
    "backends": {"Collectives.test_gather_into_tensor_deprecated": _WARNING},
    "backends_cuda": {
        "Collectives.test_gather_into_tensor_deprecated": _WARNING,
        "Collectives.test_all_gather_mixed_devices": "all tensors of a call are on one device (docs/devices.md)",
        "Collectives.test_sync_barrier_blocks_host_on_stream": _SLEEP,
        "ProcessGroup.test_work_wait_is_stream_ordered": _SLEEP,
    },
}

# What fails with torch's backend nccl over libsagecomm_nccl.so, whichever its class is.
_ON_BOTH = {
    **{test: reason for test, reason in ON_EMULATED_DEVICES.items() if reason != _NCCL and "sparse" not in test},
    "test_send_recv_nccl_torch_profiler": ON_EMULATED_DEVICES["test_ddp_profiling_torch_profiler"],
}

# What fails with ProcessGroupNCCL.
ON_NCCL = _ON_BOTH

_PROFILE = "ProcessGroupNCCL2 records no ranges under the names that the test looks for"
_DEVICE = "the test has tensors of device 0 on rank 1, and ProcessGroupNCCL2 takes those of the group's device only"

# What fails with ProcessGroupNCCL2.
ON_NCCL2 = {
    **_ON_BOTH,
    "test_all_gather_cuda": _PROFILE,
    "test_all_gather_cuda_complex": _PROFILE,
    "test_all_reduce_sum_cuda": _PROFILE,
    "test_all_reduce_sum_cuda_async": _PROFILE,
    "test_all_reduce_sum_cuda_complex": _PROFILE,
    "test_all_to_all_single_equal_split_cuda": _PROFILE,
    "test_all_to_all_single_equal_split_cuda_complex": _PROFILE,
    "test_all_to_all_single_equal_split_full_group_cuda": _PROFILE,
    "test_broadcast_cuda": _PROFILE,
    "test_reduce_sum_cuda": _PROFILE,
    "test_reduce_sum_cuda_twice": _PROFILE,
    "test_send_recv_nccl_autograd_profiler": _PROFILE,
    "test_all_gather_object_default_pg": _DEVICE,
    "test_all_gather_object_subgroup": _DEVICE,
    "test_barrier_cuda": "a barrier of ProcessGroupNCCL2 does not hold the host, and the test measures that",
}
