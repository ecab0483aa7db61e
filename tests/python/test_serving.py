"""Serving engines on sagecomm, without the engines: when the plugins answer, what they refuse, and the collectives that
they bring. Modules with the engines' names and interfaces stand in for them; `make test-vllm` runs the real vLLM."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import vllm_contract
import vllm_needs
from sagecomm import serving
from sagecomm.serving import _vllm_platform, sglang, vllm
from sagecomm.serving import lmdeploy as lmdeploy_hook
from sagecomm.serving._vllm_collectives import Collectives, Stages, all2all_manager


@pytest.fixture
def engine(monkeypatch):
    """Makes modules stand in for those of an engine: engine("vllm.platforms", name=value)."""

    def stand_in(name: str, **members: object) -> ModuleType:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules:
                module = ModuleType(path)
                module.__path__ = []
                monkeypatch.setitem(sys.modules, path, module)
                if end > 1:
                    monkeypatch.setattr(sys.modules[".".join(parts[: end - 1])], parts[end - 1], module, raising=False)
        for member, value in members.items():
            monkeypatch.setattr(sys.modules[name], member, value, raising=False)
        return sys.modules[name]

    return stand_in


@pytest.fixture(autouse=True)
def nothing_asked(monkeypatch):
    for name in (serving.VARIABLE, "VLLM_PLUGINS", "VLLM_TARGET_DEVICE", "VLLM_DISTRIBUTED_USE_SPLIT_GROUP"):
        monkeypatch.delenv(name, raising=False)
    vllm.platform.cache_clear()


@pytest.mark.parametrize("ask", [vllm.platform, vllm.check, sglang.platform, sglang.hooks])
def test_another_value_of_the_variable_is_refused(monkeypatch, ask):
    monkeypatch.setenv(serving.VARIABLE, "1")
    with pytest.raises(ValueError, match="SAGECOMM_SERVING=1: one of off, on is accepted"):
        ask()


def versions(monkeypatch, version: str | None) -> None:
    monkeypatch.setattr(vllm, "version_of", lambda *packages: version)


# ---- vLLM: asked or not ----


def test_the_entry_points_name_functions_that_exist():
    for group, function in {
        "vllm.platform_plugins": vllm.platform,
        "vllm.general_plugins": vllm.check,
        "sglang.srt.platforms": sglang.platform,
        "sglang.srt.plugins": sglang.hooks,
    }.items():
        found = {entry.load() for entry in entry_points(group=group) if entry.name == "sagecomm"}
        assert found == {function}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SAGECOMM_SERVING": "off"},
        {"VLLM_PLUGINS": "another,sagecommunist"},
        {"VLLM_PLUGINS": "another, sagecomm"},  # vLLM takes the blank for a part of the name
    ],
)
def test_installing_changes_nothing(monkeypatch, environment):
    """Neither plugin looks at vLLM before it is asked: vLLM is not installed here, so an import of it would raise."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert vllm.platform() is None
    vllm.check()
    assert sglang.platform() is None
    sglang.hooks()


@pytest.mark.parametrize("environment", [{"SAGECOMM_SERVING": "ON"}, {"VLLM_PLUGINS": "lora_resolver,sagecomm"}])
@pytest.mark.parametrize(
    ("cuda", "cpu", "chosen"),
    [
        (None, "vllm.platforms.cpu.CpuPlatform", "sagecomm.serving._vllm_cpu.SagecommCpuPlatform"),
        ("vllm.platforms.cuda.CudaPlatform", None, "sagecomm.serving._vllm_cuda.SagecommCudaPlatform"),
        (None, None, None),
    ],
)
def test_the_platform_is_that_of_the_machine(monkeypatch, engine, environment, cuda, cpu, chosen):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    versions(monkeypatch, vllm.TRIED[0])
    engine("vllm.platforms", cuda_platform_plugin=lambda: cuda, cpu_platform_plugin=lambda: cpu)
    assert vllm.platform() == chosen


@pytest.mark.parametrize("version", ["0.31.0", None])
def test_another_version_is_warned_of(monkeypatch, engine, version):
    monkeypatch.setenv(serving.VARIABLE, "on")
    engine("vllm.platforms", cuda_platform_plugin=lambda: None, cpu_platform_plugin=lambda: "x")
    versions(monkeypatch, version)
    with pytest.warns(RuntimeWarning, match=f"this is vLLM {version or 'of an unknown'}.*written against 0.32.0"):
        assert vllm.platform() is not None


def test_the_tried_version_is_not_warned_of(monkeypatch, engine, recwarn):
    monkeypatch.setenv(serving.VARIABLE, "on")
    engine("vllm.platforms", cuda_platform_plugin=lambda: None, cpu_platform_plugin=lambda: "x")
    versions(monkeypatch, vllm.TRIED[-1])
    vllm.platform()
    assert not [str(warning.message) for warning in recwarn if "written against" in str(warning.message)]


def test_an_engine_that_took_another_platform_is_stopped(monkeypatch, engine):
    monkeypatch.setenv(serving.VARIABLE, "on")
    engine("vllm.platforms", current_platform=SimpleNamespace(dist_backend="sagecomm"))
    vllm.check()
    engine("vllm.platforms", current_platform=SimpleNamespace(dist_backend="gloo"))
    with pytest.raises(RuntimeError, match=r"was asked to run on sagecomm .* and took types\.SimpleNamespace"):
        vllm.check()
    monkeypatch.setenv("VLLM_TARGET_DEVICE", "cpu")
    with pytest.raises(RuntimeError, match="VLLM_TARGET_DEVICE=cpu makes vLLM ask no plugin: unset it"):
        vllm.check()


def test_configurations_that_name_other_backends_are_refused(monkeypatch):
    _vllm_platform.refuse(SimpleNamespace(enable_elastic_ep=False))
    with pytest.raises(ValueError, match="elastic expert parallelism"):
        _vllm_platform.refuse(SimpleNamespace(enable_elastic_ep=True))
    monkeypatch.setenv("VLLM_DISTRIBUTED_USE_SPLIT_GROUP", "1")
    with pytest.raises(ValueError, match="VLLM_DISTRIBUTED_USE_SPLIT_GROUP makes vLLM create its groups"):
        _vllm_platform.refuse(SimpleNamespace(enable_elastic_ep=False))
    assert all2all_manager(SimpleNamespace(use_all2all=False)) is None
    with pytest.raises(ValueError, match="the all2all backend deepep_v2 of vLLM brings collectives of its own"):
        all2all_manager(SimpleNamespace(use_all2all=True, all2all_backend="deepep_v2"))


# ---- vLLM: the collectives ----


def communicator() -> Collectives:
    made = Collectives()
    made.device_group = dist.group.WORLD
    made.device = torch.device("cpu")
    made.world_size, made.rank_in_group = dist.get_world_size(), dist.get_rank()
    made.ranks = list(range(made.world_size))
    return made


def of_rank(rank: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def even_collectives() -> None:
    ours = communicator()
    rank, size = ours.rank_in_group, ours.world_size
    for dim in range(-3, 3):
        inputs = [of_rank(i, 2 * size, 3 * size, size) for i in range(size)]
        assert torch.equal(ours.all_gather(inputs[rank], dim), torch.cat(inputs, dim))
        transposed = [each.transpose(0, 1) for each in inputs]
        assert torch.equal(ours.all_gather(transposed[rank], dim), torch.cat(transposed, dim))
        total = sum(inputs[1:], inputs[0])
        torch.testing.assert_close(ours.reduce_scatter(inputs[rank], dim), total.chunk(size, dim)[rank])
        gathered = ours.gather(transposed[rank], size - 1, dim)
        assert (gathered is not None) == (rank == size - 1)
        assert gathered is None or torch.equal(gathered, torch.cat(transposed, dim))
    assert torch.equal(ours.broadcast(of_rank(rank, 5), 1), of_rank(1, 5))
    assert ours.get_symmetric_memory_buffer("x", (1,), torch.float32, ours.device) is None


def uneven_collectives(sizes: list[int]) -> None:
    ours = communicator()
    rank, size = ours.rank_in_group, ours.world_size
    inputs = [of_rank(i, sizes[i], 3) for i in range(size)]
    whole = torch.cat(inputs)
    assert torch.equal(ours.all_gatherv(inputs[rank], 0, sizes), whole)
    both = ours.all_gatherv([inputs[rank], 2 * inputs[rank]], 0, sizes)
    assert torch.equal(both[0], whole)
    assert torch.equal(both[1], 2 * whole)
    rows = [of_rank(i, sum(sizes), 4) for i in range(size)]
    expected = sum(rows[1:], rows[0]).split(sizes)[rank]
    torch.testing.assert_close(ours.reduce_scatterv(rows[rank], 0, sizes), expected)
    torch.testing.assert_close(ours.reduce_scatterv(rows[rank].t(), 1, sizes), expected.t())
    output = torch.full((sizes[rank], 4), float("nan"))
    assert ours.reduce_scatterv_into_output(rows[rank], output, 0, sizes) is output
    torch.testing.assert_close(output, expected)


def point_to_point() -> None:
    ours = communicator()
    rank, size = ours.rank_in_group, ours.world_size
    before, after = (rank - 1) % size, (rank + 1) % size
    if rank == 0:
        ours.send(of_rank(0, 4))
        got = ours.recv(torch.Size([4]), torch.float32)
    else:
        got = ours.recv(torch.Size([4]), torch.float32)
        ours.send(of_rank(rank, 4))
    assert torch.equal(got, of_rank(before, 4))
    got = torch.empty(6)
    ours.batch_isend_irecv(
        [
            SimpleNamespace(op=dist.isend, tensor=of_rank(rank, 6), group_peer=after),
            SimpleNamespace(op=dist.irecv, tensor=got, group_peer=before),
        ]
    )
    assert torch.equal(got, of_rank(before, 6))
    ours.batch_isend_irecv([])


def wrong_sizes() -> list[str]:
    ours = communicator()
    texts = []
    for call in (
        lambda: ours.all_gatherv(torch.ones(3, 2), 0, [4, 4]),
        lambda: ours.reduce_scatterv(torch.ones(3, 2), 0, [1, 1]),
        lambda: ours.reduce_scatter(torch.ones(3, 2), 0),
    ):
        with pytest.raises(ValueError, match="sagecomm: ") as refused:
            call()
        texts.append(str(refused.value))
    with pytest.raises(NotImplementedError, match="all_gatherv: dim must be 0, got 1"):
        ours.all_gatherv(torch.ones(3, 2), 1)
    return texts


@pytest.mark.parametrize("size", [2, 3])
def test_even_collectives_along_every_dimension(world, size):
    world(size).run(even_collectives)


@pytest.mark.parametrize("sizes", [[3, 1], [4, 0], [2, 5, 1], [2, 2, 2]])
def test_uneven_collectives(world, sizes):
    world(len(sizes)).run(uneven_collectives, sizes)


def test_sends_to_neighbours_do_not_wait_for_each_other(world):
    world(3).run(point_to_point)


def test_sizes_that_do_not_fit_are_refused_before_anything_is_sent(world):
    for rank, texts in enumerate(world(2).run(wrong_sizes)):
        assert f"all_gatherv: sizes [4, 4] in a group of 2 ask for 4 rows of rank {rank}, which has 3" in texts[0]
        assert f"reduce_scatterv: sizes [1, 1] in a group of 2 ask for 2 rows of rank {rank}, which has 3" in texts[1]
        assert "reduce_scatter: 3 rows do not divide evenly among 2 ranks" in texts[2]


def dictionaries_between_stages() -> None:
    ours = Stages()
    vars(ours).update(vars(communicator()))
    sent = {"hidden": of_rank(0, 3, 4).t(), "step": 7, "empty": torch.empty(0, 2), "residual": of_rank(1, 2).double()}
    if dist.get_rank() == 0:
        ours.send_tensor_dict(sent, 1)
        return
    got = ours.recv_tensor_dict(0)
    assert list(got) == list(sent)
    for key, value in sent.items():
        same = torch.equal(got[key], value) if isinstance(value, torch.Tensor) else got[key] == value
        assert same, key


def test_tensors_between_stages_go_over_the_group(world):
    world(2).run(dictionaries_between_stages)


# ---- what the trials of the real vLLM rest on ----


class Theirs:
    def __init__(self, group):
        self.group = group
        self.kernel: object = None

    def gather(self, x, dim=-1):
        return x

    def scatter(self, x):
        return x


class Ours(Theirs):
    def __init__(self, group):
        self.group = group

    def gather(self, x, dim=0):
        return x

    def broadcast(self, x):
        return x


def test_the_contract_notices_what_does_not_fit():
    wrong = vllm_contract.overridden(Ours, Theirs, ())
    assert set(wrong) == {"gather", "broadcast"}
    assert wrong["broadcast"] == "Theirs has none"
    assert vllm_contract.attributes(Theirs.__init__) - vllm_contract.attributes(Ours.__init__) == {"kernel"}


def test_vllm_is_installed_with_all_that_it_needs_but_torch():
    lines = ["numpy", 'torch==2.13.0+cpu; platform_system == "Linux"', 'boto3; extra == "s3"', "torchaudio", "regex>=1"]
    assert vllm_needs.needs(lines) == ["numpy", "regex>=1"]


# ---- vllm-ascend ----


def test_the_worker_for_ascend_names_sagecomm(monkeypatch, engine, recwarn):
    """vllm-ascend names hccl in its worker; the rest takes the name from the world's group."""
    named = []

    class NPUWorker:
        def _init_worker_distributed_environment(self) -> None:
            worker.init_distributed_environment(2, 0, "tcp://h:1", 0, "hccl")

    worker = engine(
        "vllm_ascend.worker.worker", NPUWorker=NPUWorker, init_distributed_environment=lambda *call: named.append(call)
    )
    engine("vllm_ascend.worker", worker=worker)
    before = worker.init_distributed_environment
    monkeypatch.delitem(sys.modules, "sagecomm.serving._vllm_ascend_worker", raising=False)
    from sagecomm.serving._vllm_ascend_worker import SagecommNPUWorker

    SagecommNPUWorker()._init_worker_distributed_environment()
    assert named == [(2, 0, "tcp://h:1", 0, "sagecomm")]
    assert worker.init_distributed_environment is before
    monkeypatch.delitem(sys.modules, "sagecomm.serving._vllm_ascend_worker")


def test_the_platform_for_ascend_takes_that_worker_and_refuses_others(monkeypatch, engine):
    class NPUPlatform:
        device_type = "npu"

        @classmethod
        def check_and_update_config(cls, vllm_config):
            if vllm_config.parallel_config.worker_cls == "auto":
                vllm_config.parallel_config.worker_cls = "vllm_ascend.worker.worker.NPUWorker"

    for gather in ("A2A", "Q_GATHER", "KV_GATHER"):
        monkeypatch.setenv(f"VLLM_USE_DIRECT_DCP_{gather}", "1")  # so that it is set back
        monkeypatch.delenv(f"VLLM_USE_DIRECT_DCP_{gather}")
    engine("vllm_ascend.platform", NPUPlatform=NPUPlatform)
    monkeypatch.delitem(sys.modules, "sagecomm.serving._vllm_ascend", raising=False)
    from sagecomm.serving import _vllm_ascend

    monkeypatch.setattr(_vllm_ascend, "version_of", lambda *packages: _vllm_ascend.TRIED[0])
    platform = _vllm_ascend.SagecommNPUPlatform
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(worker_cls="auto", enable_elastic_ep=False),
        compilation_config=SimpleNamespace(pass_config=SimpleNamespace(fuse_allreduce_rms=True)),
    )
    platform.check_and_update_config(config)
    assert config.parallel_config.worker_cls == "sagecomm.serving._vllm_ascend_worker.SagecommNPUWorker"
    platform.check_and_update_config(config)  # vLLM calls it again in each process
    assert platform.dist_backend == "sagecomm"
    assert platform.additional_env_vars == ["SAGECOMM_SERVING"]
    assert config.compilation_config.pass_config.fuse_allreduce_rms is False
    assert os.environ["VLLM_USE_DIRECT_DCP_A2A"] == "0"
    config.parallel_config.worker_cls = "vllm_ascend.xlite.xlite_worker.XliteWorker"
    with pytest.raises(ValueError, match=r"worker vllm_ascend\.xlite\.xlite_worker\.XliteWorker names hccl by itself"):
        platform.check_and_update_config(config)
    monkeypatch.delitem(sys.modules, "sagecomm.serving._vllm_ascend")


# ---- SGLang ----


def test_sglang_on_cpu_takes_sagecomm_and_leaves_its_kernel(monkeypatch, engine):
    class CpuSRTPlatform:
        def get_torch_distributed_backend_str(self):
            return "gloo"

    hooked = {}
    registry = SimpleNamespace(register=lambda target, hook, kind: hooked.update({target: (hook, kind)}))
    engine("sglang.srt.platforms.cpu", CpuSRTPlatform=CpuSRTPlatform)
    engine("sglang.srt.plugins.hook_registry", HookRegistry=registry, HookType=SimpleNamespace(REPLACE="replace"))
    monkeypatch.setattr(sglang, "version_of", lambda *packages: sglang.TRIED[0])
    monkeypatch.setenv(serving.VARIABLE, "on")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    module, _, name = sglang.platform().rpartition(".")
    platform = getattr(importlib.import_module(module), name)()
    monkeypatch.delitem(sys.modules, module)
    assert isinstance(platform, CpuSRTPlatform)
    assert platform.get_torch_distributed_backend_str() == "sagecomm"
    sglang.hooks()
    assert hooked == {"sglang.srt.distributed.parallel_state.is_shm_available": (sglang.no_kernel, "replace")}
    assert sglang.no_kernel(torch.float32, 2, 2) is False


def test_sglang_on_another_device_is_told(monkeypatch):
    monkeypatch.setenv(serving.VARIABLE, "on")
    monkeypatch.delenv("SGLANG_USE_CPU_ENGINE", raising=False)
    with pytest.raises(RuntimeError, match="for SGLang's CPU engine only"):
        sglang.platform()
    sglang.hooks()


# ---- LMDeploy ----

SELECTOR = """
class OpsBackend:
    @classmethod
    def build_communicator(cls, cpu_group, device_group, dist_config):
        return "a kernel of its own"

    @staticmethod
    def ccl_backend():
        return "nccl"

def _get_backend():
    return OpsBackend

def get_backend(device_type=None):
    return _get_backend()
"""
COMMUNICATOR = """
def build_communicator(cpu_group, device_group, dist_config):
    return f"over {device_group}"
"""
CALLER = """
import torch
from lmdeploy.pytorch.backends.selector import get_backend
backend = get_backend("cuda")
print(backend.ccl_backend(), backend.build_communicator(None, "the group", None), sep=", ")
"""


def lmdeploy(
    directory: Path, selector: str = SELECTOR, before: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """A process like one of LMDeploy's workers, which imports a package of that name and interface."""
    backends = directory / "lmdeploy" / "pytorch" / "backends"
    backends.mkdir(parents=True, exist_ok=True)
    for package in (backends, backends.parent, backends.parent.parent):
        (package / "__init__.py").touch()
    (backends / "selector.py").write_text(selector)
    (backends / "communicator.py").write_text(COMMUNICATOR)
    (backends.parent / "envs.py").write_text("enable_flashinfer_allreduce = True\nenable_symm_mem_allreduce = False\n")
    version = directory / "lmdeploy-0.18.0.dist-info"
    version.mkdir(exist_ok=True)
    (version / "METADATA").write_text("Metadata-Version: 2.1\nName: lmdeploy\nVersion: 0.18.0\n")
    return subprocess.run(
        [sys.executable, "-c", CALLER.replace("import torch\n", "import torch\n" + before)],
        env={**os.environ, "PYTHONPATH": str(directory), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.long
def test_lmdeploy_names_sagecomm_where_it_is_asked_for(tmp_path):
    done = lmdeploy(tmp_path, SAGECOMM_SERVING="on")
    assert done.stdout == "sagecomm, over the group\n", done.stderr
    assert "all_reduce of flashinfer is switched on and is not used" in done.stderr
    assert "written against" not in done.stderr


@pytest.mark.long
def test_the_hook_of_lmdeploy_outlives_a_look_and_a_reload(tmp_path):
    looked = """
import importlib.util
importlib.util.find_spec("lmdeploy.pytorch.backends.selector")
from lmdeploy.pytorch.backends import selector
importlib.reload(selector)
"""
    done = lmdeploy(tmp_path, SAGECOMM_SERVING="on", before=looked)
    assert done.stdout == "sagecomm, over the group\n", done.stderr


@pytest.mark.long
def test_lmdeploy_stays_as_it_is_otherwise(tmp_path):
    done = lmdeploy(tmp_path)
    assert done.stdout == "nccl, a kernel of its own\n", done.stderr


def test_an_lmdeploy_without_the_hook_is_refused(monkeypatch):
    monkeypatch.setattr(lmdeploy_hook, "version_of", lambda *packages: "0.19.0")
    with pytest.raises(
        RuntimeError, match=r"LMDeploy 0\.19\.0 has no _get_backend in lmdeploy\.pytorch\.backends\.selector"
    ):
        lmdeploy_hook.install(ModuleType("selector"))
    selector = SimpleNamespace(_get_backend=lambda: None)
    with pytest.warns(RuntimeWarning, match=r"this is LMDeploy 0\.19\.0, and the plugin was written against 0\.18\.0"):
        lmdeploy_hook.install(selector)
