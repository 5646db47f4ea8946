"""The address on which a server of this machine listens."""


def to_listen(host: str) -> str:
    """Return the host that a loop's `create_server` takes for an address of the settings, where "::" is every address.

    A loop takes "::" for IPv6 alone, and "" for every address of the families that the kernel has.
    """
    return "" if host == "::" else host
