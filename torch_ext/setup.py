"""Builds the wheel: the core and the libraries over it by `make core facades`, the shim through shim_build.py.

Metadata is in pyproject.toml. The sources lie above this directory, so it builds from a checkout and there is no
source distribution.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Command, Extension, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import shim_build  # noqa: E402


class BuildCore(Command):
    """Brings the libraries of sagecomm/lib up to date. It is the first step: build_py collects them."""

    def initialize_options(self) -> None:
        pass

    def finalize_options(self) -> None:
        pass

    def run(self) -> None:
        if not (shim_build.ROOT / "export").is_dir():
            raise SystemExit(f"{shim_build.ROOT} holds no sources of the core: build from a complete checkout")
        environment = {**os.environ, "PYTHON": sys.executable}
        try:
            subprocess.run(
                ["make", "--no-print-directory", "core", "facades"], cwd=shim_build.ROOT, env=environment, check=True
            )
        except FileNotFoundError:
            raise SystemExit("sagecomm: make is needed to build the core: install make") from None
        except subprocess.CalledProcessError:
            raise SystemExit("sagecomm: building the core failed: see above") from None


class BuildShim(build_ext):
    def run(self) -> None:
        self._torch = shim_build.find_torch()
        super().run()
        if self.inplace:
            (shim_build.PACKAGE / "_build_info.py").write_text(shim_build.build_info(self._torch))

    def build_extension(self, ext: Extension) -> None:
        output = Path(self.get_ext_fullpath(ext.name)).absolute()
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            shim_build.build(output, output.parent / "_build_info.py", self._torch)
        except shim_build.BuildError as err:
            raise SystemExit(str(err)) from None


class Build(build):
    sub_commands = (("build_core", None), *build.sub_commands)


class NoSourceDistribution(sdist):
    def run(self) -> None:
        raise SystemExit("sagecomm has no source distribution: build a wheel from a checkout with `make wheel`")


try:
    torch = shim_build.find_torch()
except shim_build.BuildError as err:
    raise SystemExit(str(err)) from None

setup(
    # The wheel is for this torch minor only: torch promises no C++ ABI between minors.
    install_requires=[f"torch>={torch.minor},<{torch.next_minor}"],
    ext_modules=[Extension("sagecomm._C", sources=[])],
    cmdclass={"build": Build, "build_core": BuildCore, "build_ext": BuildShim, "sdist": NoSourceDistribution},
)
