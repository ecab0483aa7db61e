"""docs/torch-surface.md names each virtual function that torch may call once, and describes it correctly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import distributed_c10d as c10d

pytestmark = pytest.mark.smoke

ROOT = Path(__file__).resolve().parents[2]
HEADERS = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d"
CLASSES = {"Backend": ("process_group.hpp", "options.hpp"), "Work": ("work.hpp",)}


def virtuals(header: str) -> set[str]:
    """Names of the virtual functions that a header declares, destructors aside."""
    code = re.sub(r"//.*", "", header)
    return set(re.findall(r"\bvirtual\b[^;{(]*?\b(\w+)\s*\(", code)) - {"Backend", "Work", "Options"}


def tables() -> dict[str, list[list[str]]]:
    """Rows of the page by section, as lists of the names that stand in the first and in the second column."""
    found: dict[str, list[list[str]]] = {}
    for part in re.split(r"^## ", (ROOT / "docs" / "torch-surface.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
        found[title] = [[*re.findall(r"`(\w+)`", names), "->", *re.findall(r"`(\w+)`", other)] for names, other in rows]
    return found


def named(section: str) -> list[str]:
    return [name for row in tables()[section] for name in row[: row.index("->")]]


def sections(kind: str) -> list[str]:
    return [title for title in tables() if title.startswith(f"{kind}: ")]


def declared(kind: str) -> set[str]:
    """Functions that a class of the shim declares."""
    text = "".join((ROOT / "cshim" / name).read_text() for name in CLASSES[kind])
    return set(re.findall(r"\b(\w+)\s*\(", re.sub(r"//.*", "", text)))


def unknown(kind: str, header: str) -> set[str]:
    return virtuals(header) - {name for title in sections(kind) for name in named(title)}


@pytest.mark.parametrize("kind", CLASSES)
def test_each_virtual_function_of_torch_is_in_the_table(kind):
    header = (HEADERS / f"{kind}.hpp").read_text()
    assert len(virtuals(header)) > 10, "the header reads in another way"
    assert unknown(kind, header) == set(), "this torch has functions that docs/torch-surface.md does not know"


def test_a_new_function_would_be_seen():
    header = (
        "class Backend {\n  // virtual void old() {}\n  virtual c10::intrusive_ptr<Work> teleport(\n      int to) {\n"
    )
    assert unknown("Backend", header) == {"teleport"}


@pytest.mark.parametrize("kind", CLASSES)
def test_each_function_is_in_the_table_once(kind):
    counts = Counter(name for title in sections(kind) for name in named(title))
    assert [name for name, n in counts.items() if n > 1] == []


@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_done_is_declared_in_the_shim_and_nothing_else(kind):
    ours = declared(kind)
    assert [name for name in named(f"{kind}: done") if name not in ours] == []
    assert [name for name in named(f"{kind}: as torch has it") if name in ours] == []


def test_other_names_lead_to_one_implementation():
    ours = declared("Backend")
    for row in tables()["Backend: another name"]:
        name, _, target = row
        assert target in ours, row
        assert name not in ours, f"{name} has an implementation of its own"


# How Python calls each refused function that this torch has a binding for, by its name in C++. Each call raises an
# error that says so.
REFUSED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "getMemAllocator": ("mem_allocator", lambda b: b.mem_allocator),
    "allocateTensor": (
        "allocate_tensor",
        lambda b: b.allocate_tensor(4, dtype=torch.float32, device=torch.device("cpu")),
    ),
    "startTimeEstimate": ("_start_time_estimate", lambda b: b._start_time_estimate()),
    "endTimeEstimate": ("_end_time_estimate", lambda b: b._end_time_estimate()),
    "new_window": ("new_window", lambda b: b.new_window()),
    "suspend": ("suspend", lambda b: b.suspend()),
    "resume": ("resume", lambda b: b.resume()),
    "getMemoryStats": ("memory_stats", lambda b: b.memory_stats()),
}


def refusals() -> dict[str, str]:
    backend = c10d._get_default_group()._get_backend(torch.device("cpu"))
    texts = {}
    for name, (binding, call) in REFUSED.items():
        if hasattr(torch._C._distributed_c10d.Backend, binding):
            try:
                call(backend)
            except RuntimeError as error:
                texts[name] = str(error)
            else:
                texts[name] = "not refused"
    return texts


def test_what_is_refused_is_refused_by_name(world):
    assert sorted(REFUSED) == sorted(named("Backend: refused by name"))
    (texts,) = world(1).run(refusals)
    assert texts
    for name, text in texts.items():
        assert "sagecomm" in text, (name, text)


def capabilities() -> dict[str, bool]:
    backend = c10d._get_default_group()._get_backend(torch.device("cpu"))
    names = [name for name in dir(backend) if re.match(r"_?supports_", name)]
    found = {name: getattr(backend, name) for name in names}
    return {name: value() if callable(value) else value for name, value in found.items() if name not in NEED_ARGUMENTS}


NEED_ARGUMENTS = {"supports_tensor_alloc"}
CAPABILITIES = {
    "supports_splitting": True,
    "supports_coalescing": True,
    "supports_shrinking": True,
    "supports_reconfigure": True,
    "supports_abort_hooks": True,
    "supports_completion_hooks": True,
    "_supports_time_estimate": False,
    "supports_time_estimate": False,  # in older torch
    "supports_window": False,
}


def test_capabilities(world):
    (found,) = world(1).run(capabilities)
    assert found == {name: value for name, value in CAPABILITIES.items() if name in found}
    assert "supports_splitting" in found
