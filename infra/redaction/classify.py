"""Classifies a value found by its name or context: a secret, or a placeholder, message, name or code."""

from infra.redaction.patterns import compile_bytes
from infra.redaction.randomness import looks_random

PLACEHOLDER = compile_bytes(
    r"^(?:\$[\w({].*|\?.*|\{\{.*|<.*|%.*%|\{[\w.]*\}|\.\.\.|.?[xX*.•#_\-?]{2,}.?|&[\w]+;?.*|\*\w+|![\w/]+.*|[|>][+\-]?|~|\[.*|null|none|nil|true|"
    r"false|undefined|yes|no|on|off|str|string|bool|int|integer|bytes|text|any|optional|required|object|function|void|"
    r"todo|tbd|n/?a|empty|unset|unknown|default|hidden|masked|basic|bearer|digest|plain|pass(?:word|wd)?|user(?:name)?|secret|token|"
    r"key|pwd?|name|value|self|options?|flags?|arguments?|parameters?|[,)\]};: ].*|"
    r"self\.\w+|change.?(?:me|it|this)|.*(?:example|placeholder|dummy|redacted|your[_\- ]|my[_\- ]?pass|<\w+>|\$\{|\{\{).*)$",
    ignore_case=True,
)
MESSAGE = compile_bytes(
    r"pass|pwd|secret|token|credential|enter |your|must |invalid|require|please|cannot|should|field|missing|forgot|confirm|reset|"
    r"wrong",
    ignore_case=True,
)
"""Parts of a message or of a name. A password may also contain one, with digits or marks."""
FORMATTED = compile_bytes(r"%s|%\(|%d|\{[\w.!:]*\}|\\n|\\u|://")
SENTENCE = compile_bytes(r" (?:is|the|for|not) ", ignore_case=True)
PHRASE = compile_bytes(r"^[a-z]{1,12}(?: [a-z]{1,12}){3,11}$")
"""Only words, as in a passphrase: a message has a capital letter or a mark."""
NOT_HASHED = b"{noop}"
"""Spring's mark of a password that is not hashed."""
MARKS = frozenset(b"!@#$^&*+~?=")
LEAST_DIGITS = 2
"""Fewest digits that make a value with a word such as `secret` a password: `password2` is the name of a field."""
CODE = compile_bytes(
    r"^[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)*[(\[{;]|^[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)+$|"
    r"^[(\[{]|^new |^await "
)
"""A name or a call in place of a value."""


def is_code(value: bytes) -> bool:
    """Return whether a value without quotes is a name or a call."""
    return CODE.search(value) is not None


def is_placeholder(value: bytes) -> bool:
    return PLACEHOLDER.match(value) is not None


def is_password(value: bytes) -> bool:
    """Return whether the value of a password field is a password, not a placeholder, message, name or path."""
    value = value.removeprefix(NOT_HASHED)
    if len(value) < 4 or is_placeholder(value):
        return False
    if looks_random(text_of(value), 6):
        return True
    return value[:1] not in b"/.-[({" and not _is_message(value)


def is_secret(value: bytes, changes: float = 0.15) -> bool:
    """Return whether the value of a key or token looks random (randomness.looks_random) and is not a placeholder."""
    if is_placeholder(value) or b" " in value.strip():
        return False
    return looks_random(text_of(value), 8, changes)


def is_chosen(value: bytes) -> bool:
    """Return whether a value found only by its context is a password: at least eight letters and digits."""
    if len(value) < 8 or b" " in value or not _digits(value):
        return False
    return any(chr(byte).isalpha() for byte in value) and is_password(value)


def text_of(value: bytes) -> str:
    """Return the value as a text of as many characters."""
    return value.decode("latin-1")


def _is_message(value: bytes) -> bool:
    if FORMATTED.search(value):
        return True
    if MESSAGE.search(value):
        return b" " in value or (_digits(value) < LEAST_DIGITS and not MARKS.intersection(value))
    return SENTENCE.search(value) is not None and PHRASE.match(value) is None


def _digits(value: bytes) -> int:
    return len(value) - len(value.translate(None, b"0123456789"))
