"""What a compressed file says it grows to, before it does: some bytes can stand for more than there is memory."""

import os
from pathlib import Path

from edgewise.data.files.problem import FileProblem


def check_memory(num_bytes: int, path: Path) -> None:
    """Refuse what would not fit even if nothing else ran."""
    if hasattr(os, "sysconf") and num_bytes > (memory := os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")):
        raise FileProblem(
            f"Expected {path} to fit in the {memory >> 30} GiB of memory, but unpacked it has {num_bytes >> 30} GiB. "
            "A large .npy file need not fit."
        )
