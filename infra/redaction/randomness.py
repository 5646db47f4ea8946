"""Random strings: whether a text looks like a generated key, and where such texts are.

Code is full of long names and of hashes of public files, so entropy alone marks too much. Two further criteria separate keys from
names: in random letters and digits, neighbours often change between digit, small and capital letter; and a key is near a word
such as "key".
"""

import math
from collections import Counter
from collections.abc import Iterator

from infra.redaction.patterns import Span, compile_bytes

LONG = 20
"""Least characters of a random string without a name."""
UNNAMED_ENTROPY = 3.6
"""Least bits per character of such a string."""
CANDIDATE = compile_bytes(rf"[A-Za-z0-9+/_\-]{{{LONG},}}={{0,2}}")
KEYS = compile_bytes(
    r"key|token|secret|pass|pwd|auth|cred|salt|seed|private|signature|hmac|session|cookie|bearer|webhook|licen[sc]e|psk|dsn|nonce"
    r"|access|account|vault|cipher|encrypt|sentry|jwt",
    ignore_case=True,
)
"""Words near a key."""
PUBLIC = compile_bytes(
    r"sha-?[0-9]{1,3}|md5|checksum|digest|integrity|hash|commit|revision|\brev\b|etag|uuid|guid|data:|;base64|base64,|crc|test"
    r"|expected|public|fingerprint|\bssh-rsa|https?://|import |\bdef |\bclass |function ",
    ignore_case=True,
)
"""Words near a random string that is public."""
MAX_UNNAMED = 200
"""A longer run is data, such as an image or a table."""
NEAR = 60
"""Bytes before a random string, on its line, in which such a word counts."""
LOWER, UPPER, DIGIT, MARK = range(4)
VOWELS = frozenset("aeiouy")


def looks_random(text: str, least: int = 8, changes: float = 0.15) -> bool:
    """Return whether a text of at least `least` characters looks random.

    `changes` is the least share of neighbours of different kinds: digit and letter, or a capital after a small letter. In random
    text of letters and digits it is 0.45 (hexadecimal 0.47, base32 0.30), in names below 0.15.
    """
    if len(text) < least:
        return False
    count, consonants, run, digits, singles = 0, 0, 0, 0, 0
    before, previous = MARK, MARK
    for character in text:
        kind = _kind(character)
        if kind != previous and MARK not in (kind, previous) and not (previous == UPPER and kind == LOWER):
            count += 1
        singles += previous == LOWER and before == UPPER and kind == UPPER
        digits += kind == DIGIT
        run = run + 1 if kind == LOWER and character not in VOWELS else 0
        consonants = max(consonants, run)
        before, previous = previous, kind
    # No word has six consonants in a row. A name in CamelCase has no digits, and rarely a small letter between two capitals.
    return consonants >= 6 or (count >= max(2.0, changes * len(text)) and (digits > 0 or singles > 1))


def _kind(character: str) -> int:
    if "a" <= character <= "z":
        return LOWER
    if "A" <= character <= "Z":
        return UPPER
    return DIGIT if "0" <= character <= "9" else MARK


def entropy(text: str) -> float:
    """Return the Shannon entropy of the characters' frequencies, in bits per character."""
    return -sum(n / len(text) * math.log2(n / len(text)) for n in Counter(text).values())


def spans(data: bytes) -> Iterator[Span]:
    """Yield the spans of random strings that are alone in quotes, or near a word that names a key."""
    for match in CANDIDATE.finditer(data):
        start, end = match.span()
        text = match.group().decode("latin-1")
        if any(map(str.isdigit, text)) and _is_key(data, start, end, text):
            yield start, end


def _is_key(data: bytes, start: int, end: int, text: str) -> bool:
    if end - start > MAX_UNNAMED or not looks_random(text, LONG, 0.25) or entropy(text) < _least_entropy(text):
        return False
    line = max(data.rfind(b"\n", max(0, start - NEAR), start) + 1, start - NEAR, 0)
    before = data[line:start]
    if PUBLIC.search(before):
        return False
    return KEYS.search(before) is not None


def _least_entropy(text: str) -> float:
    return 3.0 if all(c in "0123456789abcdefABCDEF-" for c in text) else UNNAMED_ENTROPY
