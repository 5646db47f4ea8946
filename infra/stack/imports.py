"""Imports of large packages without the garbage collector, which takes a fifth of their time and finds next to nothing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no garbage inside, nor later among what was made inside."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
