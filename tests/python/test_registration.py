"""How torch finds the backend, what that costs before the first group, and what is refused."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import textwrap
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

import sagecomm
from sagecomm import __main__ as command_line
from sagecomm import _native, _registration

pytestmark = pytest.mark.smoke


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, because the tests look at what the process has loaded."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def succeeds(code: str, **environment: str) -> str:
    done = python(code, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


ONE_RANK = "dist.init_process_group('sagecomm', store=dist.HashStore(), rank=0, world_size=1)"
NOTHING_HEAVY = """
    import sys
    assert "sagecomm._C" not in sys.modules
    assert "libsagecomm" not in open("/proc/self/maps").read()
"""


def test_import_torch_is_enough_and_loads_nothing_heavy():
    found = "assert torch.distributed.Backend('sagecomm') in torch.distributed.Backend.backend_list"
    succeeds("import torch" + textwrap.dedent(NOTHING_HEAVY) + found)


@pytest.mark.long
def test_import_sagecomm_registers_and_loads_nothing_heavy():
    code = "import sagecomm, torch.distributed as d\nassert 'SAGECOMM' in d.Backend._plugins\n"
    succeeds(code + textwrap.dedent(NOTHING_HEAVY), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    # Here `import sagecomm` imports torch, which calls the entry point while the package is half imported.
    succeeds(code + textwrap.dedent(NOTHING_HEAVY), TORCH_DEVICE_BACKEND_AUTOLOAD="1")


@pytest.mark.long
def test_what_an_import_leaves_alone():
    """Every function and class of torch.distributed is the one that it was, and so is every method."""
    succeeds(
        """
        import torch.distributed as d
        from torch.distributed import distributed_c10d as c10d

        def callables():
            found = {}
            for owner in (d, c10d, d.PrefixStore, d.TCPStore, d.ProcessGroup, d.Backend, d.P2POp):
                found |= {(repr(owner), name): value for name, value in vars(owner).items() if callable(value)}
            return found

        before = callables()
        assert len(before) > 200
        import sagecomm
        after = callables()
        changed = [name for name, value in before.items() if after.get(name) is not value]
        assert not changed, changed
    """,
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )


@pytest.mark.long
def test_what_a_program_does_not_use_is_not_imported():
    succeeds("""
        import sys, sagecomm
        later = {"sagecomm._overlap", "sagecomm.ddp", "sagecomm.nn", "sagecomm.parallel"}
        assert not later & set(sys.modules)
        for name in sagecomm.__all__:
            assert getattr(sagecomm, name) is not None, name
        assert later <= set(sys.modules)
        assert set(sagecomm.__all__) <= set(dir(sagecomm))
        assert callable(sagecomm.overlap)
        try:
            sagecomm.overlapped
        except AttributeError as error:
            assert "module 'sagecomm' has no attribute 'overlapped'" in str(error)
        else:
            raise AssertionError("there is no such name")
    """)


def test_the_wheel_has_every_package():
    torch_ext = Path(sagecomm.__file__).resolve().parents[1]
    if not (torch_ext / "setup.py").exists():
        pytest.skip("sagecomm is installed without its sources")
    text = (torch_ext / "pyproject.toml").read_text()
    listed = re.search(r"^packages = \[(.*?)\]", text, re.MULTILINE | re.DOTALL)
    assert listed is not None
    there = {".".join(path.parent.relative_to(torch_ext).parts) for path in torch_ext.glob("sagecomm/**/__init__.py")}
    assert set(re.findall(r'"(.*?)"', listed[1])) == there


@pytest.mark.skipif(
    not hasattr(c10d.Backend, "_ensure_backend_registered"), reason="this torch has no torch.distributed.backends"
)
def test_the_name_alone_is_enough_where_torch_looks_it_up():
    succeeds(f"import torch.distributed as dist\n{ONE_RANK}", TORCH_DEVICE_BACKEND_AUTOLOAD="0")


@pytest.mark.long
def test_a_broken_installation_does_not_break_import_torch(tmp_path):
    (tmp_path / "sagecomm").mkdir()
    (tmp_path / "sagecomm" / "__init__.py").write_text("raise OSError('half an installation')")
    done = python("import torch; print(torch.ones(1).item())", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    assert done.stdout == "1.0\n"
    assert "half an installation" in done.stderr


def test_entry_points_are_installed():
    assert {e.value for e in entry_points(group="torch.backends", name="sagecomm")} == {"_sagecomm_autoload:autoload"}
    assert {e.value for e in entry_points(group="torch.distributed.backends", name="sagecomm")} == {
        "sagecomm:_register"
    }


def test_registering_again_changes_nothing():
    before = c10d.Backend._plugins["SAGECOMM"]
    sagecomm._register()
    assert c10d.Backend._plugins["SAGECOMM"] is before
    assert c10d.Backend.backend_list.count("sagecomm") == 1
    assert c10d.Backend.default_device_backend_map["cpu"] == "gloo"


@pytest.mark.long
def test_groups_take_tensors_of_the_accelerator_that_torch_has():
    """A plugin may register its accelerator after this package was imported, and sagecomm is no device's default."""
    succeeds("""
        import torch, sagecomm
        from torch.distributed import distributed_c10d as c10d

        def served():
            found = c10d.BackendConfig("sagecomm").get_device_backend_map()
            assert set(found.values()) == {"sagecomm"}
            assert all(device in c10d.Backend.backend_capability["sagecomm"] for device in found)
            return list(found)

        built_for = torch.accelerator.current_accelerator()
        assert served() == ["cpu", *([built_for.type] if built_for else [])], served()
        assert not torch.cuda.is_initialized()
        defaults = dict(c10d.Backend.default_device_backend_map)
        torch.utils.rename_privateuse1_backend("npu")
        torch.accelerator.current_accelerator = lambda check_available=False: torch.device("npu")
        assert served() == ["cpu", "npu"]
        sagecomm._register()
        assert c10d.Backend.default_device_backend_map == defaults
        assert "sagecomm" not in defaults.values()
    """)


def test_a_timeout_of_the_wrong_type_is_refused():
    with pytest.raises(TypeError, match=r"Options\.timeout must be a datetime\.timedelta or None, got 5"):
        sagecomm.Options(timeout=5)


def test_one_rank_alone_in_this_process():
    options = sagecomm.Options(timeout=timedelta(seconds=30))
    dist.init_process_group("sagecomm", store=dist.HashStore(), rank=0, world_size=1, pg_options=options)
    try:
        t = torch.arange(4.0)
        dist.all_reduce(t)
        assert t.tolist() == [0.0, 1.0, 2.0, 3.0]
    finally:
        dist.destroy_process_group()


# ---- torch's flight recorder ----


def recorder_is_attached(backend: str) -> bool:
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        return len(c10d._world.pg_flight_recorder_hooks) > 0
    finally:
        dist.destroy_process_group()


@pytest.mark.skipif(not hasattr(c10d, "_maybe_attach_flight_recorder"), reason="this torch attaches no recorder")
def test_torchs_recorder_is_left_out_only_where_all_backends_record_themselves(world):
    alone, with_self_recording, with_other = (
        "sagecomm",
        "cpu:sagecomm,meta:gloo",
        "cpu:sagecomm,meta:unrecorded",
    )
    assert world(1).run(recorder_is_attached, alone, backend=None) == [False]
    assert world(1).run(recorder_is_attached, with_self_recording, backend=None) == [False]
    assert world(1).run(recorder_is_attached_beside_a_plugin, with_other, backend=None) == [True]


def recorder_is_attached_beside_a_plugin(backend: str) -> bool:
    """With a second plugin that torch's set does not hold: gloo's class under another name."""
    dist.Backend.register_backend(
        "unrecorded",
        lambda store, rank, size, timeout: dist.ProcessGroupGloo(store, rank, size, timeout),
        devices=["meta"],
    )
    return recorder_is_attached(backend)


# ---- refusals ----


def test_another_torch_minor_is_refused_with_the_command_that_rebuilds():
    from sagecomm import _build_info

    with pytest.raises(RuntimeError) as caught:
        _native.check_build("2.99.1+cpu")
    message = str(caught.value)
    assert f"built for torch {_build_info.TORCH_MINOR}" in message
    assert "this is torch 2.99.1+cpu" in message
    command = message.split("Rebuild it with: ")[1]
    assert re.match(re.escape(sys.executable) + r" -m pip install --no-build-isolation .*torch_ext$", command)


def test_another_patch_release_is_accepted():
    from sagecomm import _build_info

    _native.check_build(f"{_build_info.TORCH_MINOR}.77+cpu")


def test_a_package_that_is_not_built_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(_native, "CORE", tmp_path / "libsagecomm.so")
    with pytest.raises(RuntimeError, match=r"not built\. Build them with: .* -m pip install --no-build-isolation"):
        _native.check_build(torch.__version__)


def test_the_command_of_an_installed_package_names_where_pip_took_it_from(monkeypatch, tmp_path):
    package = tmp_path / "site-packages" / "sagecomm"
    package.mkdir(parents=True)
    checkout = tmp_path / "a checkout" / "torch_ext"
    checkout.mkdir(parents=True)
    (checkout / "setup.py").touch()

    class Installed:
        def read_text(self, name: str) -> str:
            assert name == "direct_url.json"
            return f'{{"url": "{checkout.as_uri()}", "dir_info": {{}}}}'

    monkeypatch.setattr(_native, "PACKAGE", package)
    monkeypatch.setattr(_native.importlib.metadata, "distribution", lambda name: Installed())
    assert _native.rebuild_command().endswith(f"--force-reinstall '{checkout}'")
    (checkout / "setup.py").unlink()
    assert _native.rebuild_command().endswith("SAGECOMM_CHECKOUT/torch_ext")


@pytest.mark.parametrize("options", [{"timeout": 3}, "debug=INFO", timedelta(seconds=3)])
def test_foreign_options_are_refused(options):
    with pytest.raises(TypeError, match=r"pg_options must be a sagecomm\.Options, got "):
        _registration.create(None, options)


def test_settings_are_text():
    with pytest.raises(TypeError, match="maps text to text, got 'spin': 3"):
        sagecomm.Options(settings={"spin": 3})


# ---- the rest of the public surface ----


@pytest.mark.parametrize(
    "error", [sagecomm.PeerFailure, sagecomm.CollectiveTimeout, sagecomm.CollectiveMismatch, sagecomm.Aborted]
)
def test_errors_are_torchs_and_survive_pickling(error):
    raised = error("rank 3 died", rank=3, host="a", pid=77, op="all_reduce", sequence=5, group="dp")
    assert isinstance(raised, dist.DistBackendError)
    copy = pickle.loads(pickle.dumps(raised))
    assert type(copy) is error
    assert str(copy) == "rank 3 died"
    assert (copy.rank, copy.host, copy.pid, copy.op, copy.sequence, copy.group) == (3, "a", 77, "all_reduce", 5, "dp")


def test_env_prints_every_variable(capsys):
    assert command_line.main(["env"]) == 0
    printed = capsys.readouterr().out
    assert "SAGECOMM_DEBUG=" in printed
    assert command_line.main(["env", "--json"]) == 0
    assert '"sentence"' in capsys.readouterr().out


def test_a_changed_variable_is_marked():
    row = {"name": "SAGECOMM_DEBUG", "type": "level", "default": "WARN", "value": "INFO", "sentence": "How much."}
    assert command_line.environment_table([row]).startswith("* SAGECOMM_DEBUG=INFO")
    assert command_line.environment_table([{**row, "value": "WARN"}]).startswith("  SAGECOMM_DEBUG=WARN")


def rank_sum() -> float:
    t = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(t)
    return t.item()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_all_reduce(world, size):
    assert world(size).run(rank_sum) == [size * (size + 1) / 2] * size


def test_options_reach_the_group(world):
    assert world(2).run(rank_sum, options=sagecomm.Options(timeout=timedelta(seconds=30))) == [3.0, 3.0]
