"""The functions that the entry points name. They are outside the package, so that an error in the package cannot break
`import torch`, and because the console script needs no torch."""

from __future__ import annotations


def autoload() -> None:
    """Registers the backend's name, and the hook for LMDeploy if SAGECOMM_SERVING asks for it. `import torch` calls it
    at its end. It loads no library and never raises."""
    try:
        # If `import sagecomm` has imported torch, it is still running and registers the name itself.
        import sagecomm  # noqa: F401
        from sagecomm import serving
    except Exception as err:
        _warn(f"sagecomm is installed but cannot be imported: {err!r}")
        return
    try:
        if serving.requested():
            from sagecomm.serving import lmdeploy

            lmdeploy.watch()
    except ValueError as err:  # the variable
        _warn(str(err))


def _warn(text: str) -> None:
    import warnings

    warnings.warn(text, RuntimeWarning, stacklevel=3)


def command() -> None:
    """The console script `sagecomm`: `python -m sagecomm` with this interpreter, so that both are the same."""
    import os
    import sys

    # Without -P, a directory `sagecomm` in the working directory would be imported instead of the package.
    apart = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *apart, "-m", "sagecomm", *sys.argv[1:]])
