"""The cluster's names, for the pods' Python: a copy is its sitecustomize, and the node writes the known names beside it."""

import json
import os
import pathlib
import socket
from typing import Any

REAL, HOSTS = socket.getaddrinfo, pathlib.Path(__file__).with_name("hosts.json")
os.environ.update(json.loads(HOSTS.with_name("variables.json").read_text()))
OWN = (".cluster.local", ".tabloop-train-")
"""Parts of names that only the cluster knows."""


def place_of(host: Any) -> Any:
    """Return the address of a cluster's name, and any other host as it is."""
    name = host.decode() if isinstance(host, bytes) else host
    if not isinstance(name, str):
        return host
    if name in json.loads(HOSTS.read_text()):
        return "127.0.0.1"
    if any(part in name for part in OWN):
        raise socket.gaierror(-2, "Name or service not known")
    return host


def getaddrinfo(host: Any, *arguments: Any, **keywords: Any) -> Any:
    return REAL(place_of(host), *arguments, **keywords)


socket.getaddrinfo = getaddrinfo
try:
    import uvloop
except ImportError:
    pass
else:
    of_loop = uvloop.Loop.getaddrinfo

    async def named(self: Any, host: Any, *arguments: Any, **keywords: Any) -> Any:
        """Answer as the loop does, whose own look-ups pass Python by."""
        return await of_loop(self, place_of(host), *arguments, **keywords)

    setattr(uvloop.Loop, "getaddrinfo", named)  # noqa: B010 -- a method, which mypy lets nobody assign
