"""Full garbage collections, only while few connections are open.

A full collection stops the event loop for 0.6 us an object: 60 to 95 ms with the objects of 10,000 connections, at which Python's
own thresholds start one. Nearly all objects of a request are freed at its end without the collector, and most others while they
are young; a full collection finds one object for every five requests.
"""

import asyncio
import gc

from infra.http.connections import Connections

RARELY = 1_000
"""Collections of the middle generation before a full one, instead of Python's 10: it bounds memory even if there is never a quiet
period."""
QUIET_SECONDS = 60.0
"""Seconds between two full collections."""
FEW = 128
"""Most open connections for a full collection, which then takes less than 20 ms."""


def freeze() -> None:
    """Exempt all current objects from later collections, and make full collections rare."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, RARELY)


async def collect_when_quiet(connections: Connections, seconds: float = QUIET_SECONDS) -> None:
    """Collect all garbage every so many seconds if few connections are open, until cancelled."""
    late = True
    while True:
        await asyncio.sleep(seconds)
        if connections.open > FEW:
            continue
        if late:
            freeze()  # again, for objects loaded with the first requests and the first contact to store and registry
            late = False
        else:
            gc.collect()
