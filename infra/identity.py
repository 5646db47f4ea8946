"""Names of users, and the keyed hashes under which they are stored. `tabloop hash NAME` prints a hash.

A name has one form however a client or a proxy sends it: `user_name` makes it, for the header X-User-ID, the body's `user`, the
user of a token and the argument of `tabloop hash` alike. Case counts.
"""

import hashlib
import hmac
import re
import unicodedata
from functools import lru_cache
from urllib.parse import unquote_to_bytes

HASH = re.compile(r"[0-9a-f]{32}")
MAX_CHARACTERS = 256
"""Of a user's name. OpenID Connect allows a subject of 255."""
NAME_RULE = f"a name of at most {MAX_CHARACTERS} characters, without control characters"
MAX_REMEMBERED = 4_096
"""Hashes that are kept in memory, of the names that came last."""
PERCENT_ENCODED = re.compile(r"(?:[^%]|%[0-9A-Fa-f]{2})*")
REFUSED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Unicode's control characters, line and paragraph separators, and lone surrogates: categories Cc, Zl, Zp and Cs."""


def user_name(given: str) -> str:
    """Return the one form of a user's name: percent-decoded, NFC, without surrounding blanks; empty if nothing is left.

    Proxies percent-encode names outside ASCII (RFC 3986, as UTF-8); `%` that is no such code is kept as it is. NFC: Unicode
    Standard Annex 15.

    Raises:
        ValueError: the name is too long, or has a control character.
    """
    if given.isascii() and given.isprintable() and "%" not in given:
        name = given.strip()  # as most are: the rest would leave it as it is
    else:
        name = unicodedata.normalize("NFC", _percent_decoded(given)).strip()
    if len(name) > MAX_CHARACTERS:
        raise ValueError(f"expected {NAME_RULE}, got {len(name)} characters, {name[:40]!r}...")
    if REFUSED.search(name):
        raise ValueError(f"expected {NAME_RULE}, got {name[:40]!r}")
    return name


def header_text(value: str) -> str:
    """Return the text of a header that Starlette read as Latin-1: UTF-8 if its bytes are UTF-8, else Latin-1 (RFC 9110, 5.5)."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def user_hash(secret: bytes, name: str) -> str:
    """Return the keyed hash of a user's name, in whatever form it is given, as events hold it. Raises ValueError (user_name)."""
    return keyed_hash(secret, user_name(name))


@lru_cache(MAX_REMEMBERED)
def keyed_hash(secret: bytes, text: str) -> str:
    """Return a keyed hash of a text as 32 hex digits."""
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()[:32]


def _percent_decoded(text: str) -> str:
    if "%" not in text or not PERCENT_ENCODED.fullmatch(text):
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeError:
        return text
