from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cuda_bed import CudaBed, fake_cuda
from programs import Signals
from worlds import Environment, Pool, World

if TYPE_CHECKING:
    from transformer import History

pytest_plugins = ["drawing", "reruns", "sharing"]


def pytest_configure() -> None:
    # In a background job of a shell, SIGINT is ignored, and every process would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["SAGECOMM_PROBE"] = "off"  # so that choices are the same on all machines


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def reference(pool: Pool) -> History:
    """The history of training the transformer in one process."""
    import transformer  # with torch

    return pool.world(1).run(transformer.one_process, backend=None)[0]


@pytest.fixture
def world(pool: Pool) -> Callable[[int], World]:
    """world(n) returns n ranks in processes that all tests share."""
    return pool.world


@pytest.fixture
def hosts(pool: Pool) -> Callable[..., World]:
    """hosts(2, 1) returns three ranks, two of them on one host, in processes that all tests share."""
    return pool.hosts


@pytest.fixture
def fresh_world(pool: Pool) -> Iterator[Callable[..., World]]:
    """fresh_world(n, environment) returns n ranks in new processes for this test. The environment may be a list, with
    one for each rank."""

    def make(size: int, environment: Environment | None = None) -> World:
        return pool.fresh_world(size, environment)

    yield make
    pool.stop_private()


@pytest.fixture(scope="module")
def mortals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """Processes that the tests of one file share and may stop, interrupt or kill. Dead processes are replaced."""
    pool = Pool(tmp_path_factory.mktemp("mortals"))
    yield pool
    pool.stop()


@pytest.fixture(scope="session")
def cuda_bed() -> Iterator[CudaBed]:
    """Processes under fake CUDA, with the emulated NCCL."""
    try:
        fake_cuda.build()
    except fake_cuda.builder.UnavailableError as error:
        pytest.skip(str(error))
    bed = CudaBed(preload=[fake_cuda.NCCL])
    yield bed
    bed.stop()


@pytest.fixture
def signals(tmp_path: Path) -> Iterator[Signals]:
    """A way for ranks to report their progress to the test."""
    signals = Signals(tmp_path / "signals")
    yield signals
    signals.close()
