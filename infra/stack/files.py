"""Files that only their owner can read."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from infra.settings.sources import expect_file

PRIVATE = 0o077
"""Umask of files and directories for their owner alone."""


def write(file: Path, text: str) -> None:
    """Replace a file at once by one that its owner alone can read, behind symbolic links.

    Raises:
        OSError: it cannot be written, or is a directory, a device or a pipe, which stays.
    """
    place = _place(file)
    partial = place.with_name(f"{place.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        os.replace(partial, place)
    except OSError as error:
        error.filename = str(file)  # a full disk names none
        with suppress(OSError):
            partial.unlink()
        raise


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Let one process at a time read a file and replace it, by a lock file beside it. Raises OSError as `write` does."""
    place = _place(file)
    with os.fdopen(os.open(place.with_name(f"{place.name}.lock"), os.O_WRONLY | os.O_CREAT, 0o600), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _place(file: Path) -> Path:
    place = Path(os.path.realpath(file))
    if place.exists():
        expect_file(place)
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


@contextmanager
def private() -> Iterator[None]:
    """Make every file that this process and its children create in the block one for its owner alone."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)


def close_to_others(directory: Path) -> None:
    """Take away the permissions of others on a directory and on what lies below it."""
    for folder, _, names in os.walk(directory):
        for path in (Path(folder), *(Path(folder, name) for name in names)):
            with suppress(FileNotFoundError):  # a running part removes files
                if not path.is_symlink() and (mode := path.lstat().st_mode & 0o777) & PRIVATE:
                    path.chmod(mode & ~PRIVATE)
