"""Keyed hashes of user ids: the only form in which ids are stored. `python -m infra.identity NAME` prints one."""

import hashlib
import hmac
import re
import sys

from infra.settings import load

HASH = re.compile(r"[0-9a-f]{32}")


def user_hash(secret: bytes, identity: str) -> str:
    """Return the keyed hash of a user's id as 32 hex digits, as events hold it."""
    return hmac.new(secret, identity.encode(), hashlib.sha256).hexdigest()[:32]


def main(identity: str) -> None:
    """Print the hash of an id as sent in X-User-ID."""
    secret = load().serving.user_secret
    if secret is None:
        raise SystemExit(
            "serving.user_secret is not set; set TABLOOP_SERVING__USER_SECRET to the value that the serving app uses"
        )
    print(user_hash(secret.get_secret_value().encode(), identity))


if __name__ == "__main__":
    main(*sys.argv[1:])
