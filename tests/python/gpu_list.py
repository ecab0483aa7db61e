"""The checks of gpu_check.py: the catalogue of what an engine for a device must do, item by item.

Most programs are those of the emulated tests. Each check runs in processes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Check:
    name: str
    what: str
    programs: tuple[str, ...] = ()  # module:function, each in a group of its own (gpu_programs.run)
    whole: str = ""  # or one function of a rank, which makes its group: (rank, size, file of a store)
    ranks: tuple[int, ...] = (2,)
    dies: int | None = None  # a rank that ends itself
    settings: Mapping[str, str] = field(default_factory=dict)
    once: bool = False  # it is the same with all engines, and runs with one
    alone: bool = False  # it runs beside no other check
    facade: bool = False  # the process has libsagecomm_nccl.so where NCCL stands
    emulated_only: bool = False  # it needs a fault of the device
    hardware_only: str = ""  # why the emulator does not run it
    staged_only: str = ""  # why other engines do not run it
    cuda_only: str = ""  # why engines other than cuda do not run it

    def functions(self) -> tuple[str, ...]:
        return self.programs or (self.whole,)


def _of(module: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{module}:{name}" for name in names)


CHECKS = (
    Check(
        "holds",
        "a held stream waits until it is released",
        whole="gpu_programs:holds",
        ranks=(1,),
        once=True,
        alone=True,
    ),
    Check(
        "1-producer",
        "an operation reads what a late stream writes",
        _of("device_programs", "producer_is_late", "host_goes_on_beside_a_held_stream")
        + _of("device_p2p", "send_of_a_late_producer", "recv_into_memory_that_is_in_use", "batch_of_late_producers")
        + _of("device_coalesced", "late_producer"),
    ),
    Check(
        "2-consumer",
        "wait() orders the stream and does not block the host",
        _of("device_waits", "nothing_waits_on_the_host", "operations_follow_each_other", "roots")
        + _of("device_waits", "outputs_that_nobody_has_waited_for")
        + _of("device_coalesced", "consumer_does_not_synchronise")
        + _of("device_p2p", "chain_without_the_host"),
    ),
    Check(
        "3-waits",
        "wait() in another stream, in another thread, twice, not at all",
        _of("device_programs", "wait_on_another_stream", "wait_twice", "wait_in_another_thread")
        + _of("device_programs", "synchronous_call_without_a_wait"),
    ),
    Check(
        "4-memory",
        "tensors and works are dropped while they are in use",
        _of("device_programs", "work_is_dropped", "tensors_are_dropped", "outputs_are_dropped")
        + _of("device_programs", "work_and_tensors_are_dropped", "input_is_written_after_the_wait")
        + _of("device_p2p", "tensors_and_works_are_dropped")
        + _of("device_coalesced", "works_and_tensors_are_dropped"),
    ),
    Check(
        "5-streams",
        "the current stream changes between operations and within a window",
        _of("device_programs", "issue_on_several_streams") + _of("device_coalesced", "streams_change_in_a_window"),
    ),
    Check(
        "6-futures",
        "futures, completion and barriers",
        _of("device_calls", "futures", "devices_of_objects", "modes_see_nothing")
        + _of("device_coalesced", "futures")
        + _of("device_waits", "barrier_waits_on_the_host"),
    ),
    Check("7-timeout", "a rank does not call", _of("device_catalogue", "a_rank_that_does_not_call")),
    Check(
        "8-mismatch",
        "ranks make different calls",
        _of("device_catalogue", "different_calls", "splits_that_do_not_fit", "blocks_that_do_not_fit")
        + _of("device_calls", "mismatch")
        + _of("device_p2p", "mismatch")
        + _of("device_waits", "next_operation_raises")
        + _of("device_coalesced", "one_of_several_fails"),
    ),
    Check(
        "9-types",
        "reductions and types: the result or the refusal of the CPU",
        _of("device_catalogue", "reductions_and_types", "float8_is_moved")
        + _of("device_calls", "operations", "long_tensors"),
    ),
    Check(
        "9-all-types",
        "every operation, type and reduction",
        _of("gpu_programs", "operations_and_types"),
        ranks=(1, 2, 3, 8),
    ),
    Check(
        "10-places",
        "tensors that are not contiguous, empty, in odd places",
        _of("device_programs", "not_contiguous")
        + _of("device_waits", "rows_that_are_not_contiguous")
        + _of("device_catalogue", "odd_places")
        + _of("device_p2p", "not_contiguous")
        + _of("device_coalesced", "not_contiguous_and_repeated"),
    ),
    Check(
        "11-p2p",
        "sends and recvs",
        _of("device_p2p", "crossing", "tags_in_another_order", "later_recv_ends_first", "from_any_source")
        + _of("device_p2p", "to_itself", "objects", "batch"),
    ),
    Check(
        "11-coalesced",
        "coalesced calls and windows",
        _of("device_coalesced", "all_reduces", "all_gathers", "reduce_scatters", "managers", "mixed_kinds", "refusals"),
    ),
    Check("11-senders", "a batch of several senders", whole="device_waits:batch_of_several_senders", ranks=(3,)),
    Check(
        "12-in-flight",
        "more operations in flight than a stream holds commands",
        _of("gpu_programs", "many_in_flight"),
        ranks=(2, 4),
    ),
    Check("12-sizes", "operations of many sizes in flight", _of("device_programs", "several_in_flight")),
    Check(
        "12-events",
        "the device has no event left",
        whole="device_catalogue:events_run_out",
        settings={"EMULATOR_FAULTS": "cudaEventCreateWithFlags@20+=out_of_memory"},
        emulated_only=True,
        staged_only="the fault counts the events that copies through pinned memory need",
    ),
    Check("13-death", "a peer dies while streams wait for it", whole="device_waits:peer_dies", dies=1),
    Check(
        "14-no-device",
        "collectives on the CPU need no device",
        whole="device_catalogue:without_devices",
        once=True,
        settings={"CUDA_VISIBLE_DEVICES": "", "EMULATOR_DEVICES": "0"},
    ),
    Check(
        "14-no-symbol",
        "the driver lacks a function",
        whole="device_catalogue:without_a_symbol",
        settings={"EMULATOR_FAULTS": "missing=cuStreamWaitValue32"},
        emulated_only=True,
    ),
    Check(
        "15-groups",
        "groups that have met, in opposite order; destroyed in flight",
        _of("device_programs", "two_groups_that_have_met")
        + _of("device_catalogue", "collective_destroyed_in_flight")
        + _of("device_p2p", "destroyed_in_flight"),
    ),
    Check(
        "15-first",
        "first collectives of groups, in opposite order",
        _of("device_programs", "two_groups_in_opposite_order"),
        staged_only="the first collective of a group waits for all ranks",
    ),
    Check("15-fork", "a child of a fork is refused", _of("device_catalogue", "child_of_a_fork")),
    Check("15-exit", "a process ends while its streams wait", whole="device_waits:ends_without_destroying"),
    Check("15-abort", "abort() while streams wait", whole="device_waits:abort_while_streams_wait"),
    Check(
        "16-random",
        "random streams and delays",
        _of("gpu_programs", "random_orders"),
        ranks=(1, 2, 4, 8),
    ),
    Check(
        "graph",
        "a graph of computation is replayed beside operations",
        _of("gpu_programs", "computation_in_a_graph"),
        ranks=(2, 4),
    ),
    Check(
        "graph-collectives",
        "graphs hold collectives",
        _of("device_graphs", "on_a_gpu"),
        ranks=(2, 4),
        cuda_only="of the engines for a shared device, only cuda has operations in graphs",
    ),
    Check(
        "graph-refused",
        "an operation in a capture is refused",
        _of("device_calls", "captures_are_refused"),
        staged_only="graphs hold the engine's operations",
    ),
    Check(
        "training", "DDP gives the parameters of one process", _of("device_calls", "training", "other_backend_strings")
    ),
    Check(
        "nccl",
        "NVIDIA's NCCL, which takes one rank on a device, through the engine nccl",
        whole="gpu_programs:vendors_nccl",
        ranks=(1,),
        settings={"SAGECOMM_ENGINE": "nccl"},
        once=True,
        hardware_only="test_nccl_engine.py runs this on the emulated library",
    ),
    Check(
        "nccl-facade",
        "torch's backend nccl and pynccl's calls with libsagecomm_nccl.so in NCCL's place",
        whole="facade_ranks:on_a_gpu",
        ranks=(2, 4),
        facade=True,
    ),
    Check("sanitizer", "torch's CUDA sanitizer over all this", _of("gpu_programs", "torch_sanitizer")),
)
