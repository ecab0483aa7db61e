"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Sequence


def in_bytes(number: int, like: int | None = None) -> str:
    """Powers of 1024 (KiB) unless the number is a multiple of 1000 and not of 1024: "64 KiB", "100 MB".

    With `like` the unit follows that number, so that a column of a table has one kind of unit.
    """
    if number < 1024 and number != 1000:
        return f"{number} B"
    model = number if like is None else like
    decimal = model % 1000 == 0 and model % 1024 != 0
    base, names = (1000, ("B", "KB", "MB", "GB")) if decimal else (1024, ("B", "KiB", "MiB", "GiB"))
    power = 0
    while power < 3 and number >= base ** (power + 1):
        power += 1
    return f"{number / base**power:.4g} {names[power]}"


def power(number: int) -> str:
    """A length in the grammar of SAGECOMM_TUNE, shortest form: "128K" for 131072, "46528"."""
    for unit, size in (("G", 1 << 30), ("M", 1 << 20), ("K", 1 << 10)):
        if number and number % size == 0:
            return f"{number // size}{unit}"
    return str(number)


def duration(seconds: float) -> str:
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.4g} {unit}"
    return f"{seconds:.4g} s"


def about(seconds: float) -> str:
    """A time that is still to pass, or has passed, roughly."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1e3:.0f} ms"
    for unit, scale in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 100 * scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds / 86400:.1f} days"


def many(n: int, one: str, several: str = "") -> str:
    return f"{n} {one}" if n == 1 else f"{n} {several or one + 's'}"


def columns(rows: Sequence[tuple[str, ...]], numbers: range = range(0)) -> list[str]:
    """Lines of cells below each other; those of the columns `numbers` stand on the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        padded = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(("  " + "  ".join(padded)).rstrip())
    return lines
