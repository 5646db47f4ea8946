"""Keyed hashes of user ids: the only form in which ids are stored. `tabloop hash NAME` prints one."""

import hashlib
import hmac
import re

HASH = re.compile(r"[0-9a-f]{32}")


def user_hash(secret: bytes, identity: str) -> str:
    """Return the keyed hash of a user's id as 32 hex digits, as events hold it."""
    return hmac.new(secret, identity.encode(), hashlib.sha256).hexdigest()[:32]
