"""Fake CUDA by itself: torch's CUDA build, unmodified, on the emulator (tests/emulator/README.md)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cuda_bed import CudaBed, fake_cuda

symbols = fake_cuda.builder.symbols


@pytest.mark.parametrize(
    "function",
    [
        *("devices", "runtime", "held_copy", "operators", "errors_of_operators", "training", "futures", "capture"),
        *("query_in_a_capture", "flags"),
    ],
)
def test_torch_runs_on_the_emulator(cuda_bed: CudaBed, function: str) -> None:
    cuda_bed.under_all(f"cuda_basics:{function}")


def test_random_numbers_do_not_depend_on_the_schedule(cuda_bed: CudaBed) -> None:
    first, *others = cuda_bed.under_all("cuda_basics:random_numbers")
    assert all(other == first for other in others)


@pytest.mark.parametrize("function", ["device_memory_is_unreachable", "fork_is_refused"])
def test_processes_are_kept_apart(cuda_bed: CudaBed, function: str) -> None:
    cuda_bed.run(f"cuda_basics:{function}")


def test_faults_reach_torch(cuda_bed: CudaBed) -> None:
    cuda_bed.run("cuda_basics:faults", EMULATOR_FAULTS="cudaMalloc@2+=out_of_memory")


def test_a_process_without_devices_has_no_cuda(cuda_bed: CudaBed) -> None:
    assert cuda_bed.run("cuda_basics:is_available", EMULATOR_DEVICES="1")
    assert not cuda_bed.run("cuda_basics:is_available", EMULATOR_DEVICES="0")


def test_nothing_is_computed_beside_a_driver(cuda_bed: CudaBed) -> None:
    environment = fake_cuda.environment(FAKE_CUDA_DRIVER_FILE="/dev/null")
    done = subprocess.run(["/bin/true"], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "/dev/null exists" in done.stderr


def test_a_function_that_is_not_emulated_says_so_once(cuda_bed: CudaBed) -> None:
    script = f"""
import ctypes
driver, runtime = ctypes.CDLL({str(fake_cuda.DRIVER)!r}), ctypes.CDLL({str(fake_cuda.RUNTIME)!r})
assert driver.cuMulticastCreate() == driver.cuMulticastCreate() == 801
assert runtime.cudaPeekAtLastError() == 0
assert runtime.cudaMallocManaged() == runtime.cudaMallocManaged() == 801
assert runtime.cudaGetLastError() == 801
assert runtime.cudaGetLastError() == 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=fake_cuda.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = "fake CUDA: {} is not emulated"
    assert done.stderr.splitlines() == [told.format("cuMulticastCreate"), told.format("cudaMallocManaged")]


def test_the_list_of_symbols_is_that_of_the_installed_torch(cuda_bed: CudaBed) -> None:
    hint = "run python tests/emulator/symbols.py, and look at what is new"
    assert symbols.listed() == (symbols.torch_version(), symbols.of_torch()), hint


@pytest.mark.long
def test_a_process_that_somebody_stops(cuda_bed: CudaBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuda_bed.BOUND_S", 10)
    with pytest.raises(AssertionError, match="stopped by a signal\n"):
        cuda_bed.run("cuda_basics:is_stopped")
    with pytest.raises(AssertionError, match="hung\n"):
        cuda_bed.run("cuda_basics:hangs")
