"""What `import torch` calls at its end. Kept apart from the package so that nothing in there can break that import."""

from __future__ import annotations


def autoload() -> None:
    """Registers the backend's name with torch.distributed. Loads neither the extension nor the core; never raises."""
    try:
        # Already under way, and about to register, where it was `import sagecomm` that imported torch.
        import sagecomm  # noqa: F401
    except Exception as err:
        import warnings

        warnings.warn(f"sagecomm is installed but cannot be imported: {err!r}", RuntimeWarning, stacklevel=2)
