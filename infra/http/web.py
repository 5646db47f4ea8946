"""Which browser requests are accepted: one definition for every server of the loop that a web page could reach.

A page that a developer opens can send requests to every port of the machine, and by DNS rebinding under a host name of its own.
Host, Origin and the Fetch Metadata headers are set by the browser, out of the page's reach. So a request must name the server in
its one Host header and must not come from another origin's page; only links to the server may be followed from anywhere.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from infra.settings import LOOPBACK

HOST = re.compile(r"(?:\[(?P<v6>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::[0-9]*)?")
"""A Host header in lower case. urllib.parse.urlsplit would also take localhost[::1]."""
READ = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"))
"""Headers that decide."""
PROBED = ("/health", "/ready")
"""Paths that balancers ask, which say nothing but how a server is."""
PORTS = {"http": 80, "https": 443}
"""Port of a scheme where an origin names none."""


@dataclass(frozen=True)
class Refusal:
    """A frozen record of why a request may not pass."""

    status: int
    reason: str


def own_names(address: str) -> frozenset[str]:
    """Return the host names of a server at a URL: the URL's, and if that is this machine's, every name of it."""
    name = urlsplit(address).hostname or ""
    return frozenset({name} | (set(LOOPBACK) if name in LOOPBACK else set()))


def host_name(value: str) -> str:
    """Return the lower-case name or address in a Host header, without port and brackets; "" if it is not one."""
    found = HOST.fullmatch(value.lower()) if value.isascii() else None
    return (found["v6"] or found["name"]) if found else ""


def foreign(
    headers: Iterable[tuple[bytes, bytes]], method: str, names: Collection[str], reached: str = "", *, probe: bool = False
) -> Refusal | None:
    """Return why a request is not one of the server's own clients; None if it may be.

    Args:
        headers: names in lower case, and values.
        names: host names of this server (own_names).
        reached: address that the connection reached. It is accepted as a name, for probes, since an attacker cannot choose it.
        Empty: it is not accepted.
        probe: whether it may name no server and no origin: a request of HTTP/1.0 for one of PROBED. Browsers send none.
    """
    values: dict[bytes, list[str]] = {}
    for name, value in headers:
        if name in READ:
            values.setdefault(name, []).append(value.decode("latin-1").lower())
    if probe and not values:
        return None
    hosts = values.get(b"host", [])
    host = host_name(hosts[0]) if len(hosts) == 1 else ""
    if not host or (host not in names and not _same_address(host, reached)):
        return Refusal(403, f"Host: {', '.join(hosts)[:200]!r} is no name of this server")
    if any(not _is_of(origin, hosts[0]) for origin in values.get(b"origin", [])):
        return Refusal(403, "Origin: another origin's page may not send requests here")
    # Browsers send this also without Origin: for images, scripts, forms of other pages. A link may be followed.
    site, mode, target = (values.get(name, [""])[-1] for name in (b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"))
    link = method in ("GET", "HEAD") and mode == "navigate" and target == "document"
    if site in ("cross-site", "same-site") and not link:
        return Refusal(403, "Sec-Fetch-Site: another site's page may not send requests here")
    return None


def _is_of(origin: str, host: str) -> bool:
    """Return whether an origin is that of a Host header. A proxy may add the scheme's port, which no browser writes."""
    scheme, _, place = origin.partition("://")
    return host == place or (scheme in PORTS and host == f"{place}:{PORTS[scheme]}")


def _same_address(host: str, reached: str) -> bool:
    try:
        return bool(reached) and ipaddress.ip_address(host) == ipaddress.ip_address(reached)
    except ValueError:
        return False
