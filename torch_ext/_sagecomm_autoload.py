"""What entry points name. Kept apart from the package: nothing in there can break `import torch`, and the console
script needs no torch."""

from __future__ import annotations


def autoload() -> None:
    """What `import torch` calls at its end. Registers the backend's name, loads no library, never raises."""
    try:
        # Already under way, and about to register, where it was `import sagecomm` that imported torch.
        import sagecomm  # noqa: F401
    except Exception as err:
        import warnings

        warnings.warn(f"sagecomm is installed but cannot be imported: {err!r}", RuntimeWarning, stacklevel=2)


def command() -> None:
    """The console script `sagecomm`: `python -m sagecomm` with this interpreter, so that both are the same."""
    import os
    import sys

    # Without -P a directory called sagecomm in the working directory would come first.
    apart = ["-P"] if sys.version_info >= (3, 11) else []
    os.execv(sys.executable, [sys.executable, *apart, "-m", "sagecomm", *sys.argv[1:]])
