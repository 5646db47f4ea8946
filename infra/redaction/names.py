"""Values that a name gives away: `password = "..."`, `API_KEY: ...`, `--token ...`, `https://user:...@host`.

In code only a literal is a secret; in a file of settings a value may stand without quotes (infra/redaction/file_kind.py). An
unquoted value that looks random is a secret anywhere.
"""

import base64
import binascii
from collections.abc import Iterator

import re2

from infra.redaction.file_kind import Values
from infra.redaction.randomness import looks_random
from infra.redaction.shapes import TOKEN_END, Span, compile_bytes

MAX_VALUE = 4_096
"""Bytes of a literal; what follows them is searched for secrets again."""
JUDGED = 200
"""Bytes of a value that decide whether it is a secret: names may follow each other closely, so none may cost much."""
PASSWORD = r"pass(?:word|wd|phrase|code)?|pwd|pw|contrase(?:\xc3\xb1|n)a|passwort|kennwort|motdepasse"
KEY_OF = (
    r"(?:api|app|application|access|account|admin|auth|client|consumer|crypto|cipher|encryption|decryption|encrypt|hmac|host|"
    r"integration|jwt|licen[sc]e|master|private|primary|secondary|rsa|sas|secret|security|server|service|session|shared|"
    r"signing|sign|sse|ssh|storage|user|webhook|write|pre_?shared|registry|deploy|ingest|routing)"
)
SECRET = (
    rf"{KEY_OF}[_\-. ]?key(?:[_\-. ]?(?:secret|value))?|secret|token|credentials?|creds?|bearer|auth|authorization|signature|"
    r"salt|seed|nonce|cookie|session[_\-]?id|psk|dsn|apikeys?|web[_\-]?hook(?:[_\-]?url)?|conn(?:ection)?[_\-]?str(?:ing)?|_key|\bpin"
)
"""Names of random values; passwords may be words, these may not."""
TAIL = (
    r"(?:[_\-.]?(?:value|val|text|txt|str|string|b64|base64|hex|raw|plain|default|prod|production|dev|test|stage|staging|old|new|"
    r"live|main|[0-9]{1,2}))?"
)
WRAPPER = (
    r"(?:(?:Secret(?:Str|Bytes)?|bytes|bytearray|str|String::from|\[\]byte|Some|Buffer\.from|new String|"
    r"(?:base64\.)?b64decode|Secret\.new)\()?"
)
OPENING = r"""(?:[rbfuRBFUL@$]{0,2}(\\?(?:\"\"\"|'''|["'`])))?"""
ASSIGNED = (
    r"(?:(?::[ \t]*[\w.\[\]|? ]{1,40})?[ \t]*(?:={1,3}|:=|\+=|!=)>?|:|=>"  # a type may stand between a name and its value
    r"""|[ \t]*\n[ \t]*value:|,[ \t]*\n?[ \t]*\\?["']?value\\?["']?[ \t]*[:=]|[ \t]+value=|,)"""
)
NAMED = compile_bytes(
    rf"""(?:({PASSWORD})|(?:{SECRET})){TAIL}(\\?["'])?[\])]?(>|[ \t]*(?:{ASSIGNED}))[ \t]*{WRAPPER}{OPENING}""", ignore_case=True
)
FLAG = compile_bytes(
    r"""[\s"'`\[(]--(?:[a-z0-9]+-)*(?:(pass(?:word|wd|phrase)?|pwd)|token|secret|api-?key|access-?key|secret-?key)[ \t]+["']?""",
    ignore_case=True,
)
COMMAND = compile_bytes(
    r"""(?:curl|wget|https?)\b[^\n]{0,300}[ \t](?:-u|--user|--proxy-user)[ =]?["']?[^\s:"'$]{1,64}:|"""
    r"""(?:mysql|mysqldump|mysqladmin|mariadb)\b[^\n]{0,200}[ \t]-p|sshpass[ \t]+-p[ \t]*["']?|"""
    r"""redis-cli\b[^\n]{0,100}[ \t]-a[ \t]+["']?|docker[ \t]+login\b[^\n]{0,100}[ \t]-p[ \t]+["']?|"""
    r"""-pass(?:in|out)?[ \t]+pass:|(?:login|user|account)[ \t]+\S{1,100}\s{1,20}password[ \t]+|requirepass[ \t]+|"""
    r"""(?:^|\n)[\w.\-*]+:(?:[0-9]{2,5}|\*):[\w.\-*]+:[\w.\-*]+:|identified[ \t]+by[ \t]+["']|"""
    r"""(?:with[ \t]+(?:encrypted[ \t]+)?|set[ \t]+)password[ \t]*=?[ \t]*["']""",
    ignore_case=True,
)
URL = compile_bytes(r"""://[^\s:/@"'<>`]{0,128}:([^\s/@"'<>`]{1,256})@""")
HEADER = compile_bytes(r"(?:bearer|token|bot|apikey|api-key|splunk)[ \t]+([A-Za-z0-9._~+/\-]{8,}=*)", ignore_case=True)
BASIC = compile_bytes(r"basic[ \t]+([A-Za-z0-9+/]{6,}={0,2})", ignore_case=True)
PLACEHOLDER = compile_bytes(
    r"^(?:\$[\w({].*|\{\{.*|<.*|%.*%|\{[\w.]*\}|\.\.\.|.?[xX*.•#_\-?]{2,}.?|&[\w]+;?.*|\*\w+|![\w/]+.*|[|>][+\-]?|~|\[.*|null|none|nil|true|"
    r"false|undefined|yes|no|on|off|str|string|bool|int|integer|bytes|text|any|optional|required|object|function|void|"
    r"todo|tbd|n/?a|empty|unset|unknown|default|hidden|masked|basic|bearer|digest|plain|pass(?:word|wd)?|user(?:name)?|secret|token|"
    r"key|pwd?|name|value|self|[,)\]};: ].*|"
    r"self\.\w+|change.?(?:me|it|this)|.*(?:example|placeholder|dummy|redacted|your[_\- ]|my[_\- ]?pass|<\w+>|\$\{|\{\{).*)$",
    ignore_case=True,
)
PROSE = compile_bytes(
    r"pass|pwd|secret|token|credential|enter |your|must |invalid|require|please|cannot|should|field|missing|forgot|confirm|reset|"
    r"wrong| is | the | for | not |%s|%\(|%d|\{[\w.!:]*\}|\\n|\\u|://",
    ignore_case=True,
)
"""Parts of a message or of a name, not of a password."""
CODE = compile_bytes(
    r"^[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)*[(\[{;]|^[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)+$|"
    r"^[(\[{]|^new |^await "
)
"""A name or a call in place of a value."""
BARE = compile_bytes(r"""[^\s"'`,;(){}\[\]<>]+""")
WORD = compile_bytes(r"""[^\s"'`;<>]+""")
LINE = compile_bytes(r"[^\n]*")
LETTER = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
SMALL = frozenset(b"abcdefghijklmnopqrstuvwxyz")


def spans(data: bytes, values: Values) -> Iterator[Span]:
    """Yield the spans of values with a secret's name, in bytes; `values` tells how values stand in the file."""
    covered = 0
    for match in NAMED.finditer(data):
        if match.start() >= covered and (span := _named(data, match, values)):
            covered = span[1]
            yield span
    for pattern in (FLAG, COMMAND):
        for match in pattern.finditer(data):
            value = WORD.match(data, match.end(), match.end() + JUDGED)
            is_one = _is_password if pattern is COMMAND or match.group(1) else _is_secret
            if value and not _is_code(value.group()) and is_one(value.group()):
                yield value.start(), TOKEN_END.match(data, value.end()).end()
    for match in URL.finditer(data):
        if not _is_placeholder(match.group(1)) and match.group(1) != b"port":
            yield match.span(1)
    for match in HEADER.finditer(data):
        if looks_random(_text(match.group(1)), 12, 0.2):
            yield match.span(1)
    for match in BASIC.finditer(data):
        if _is_user_and_password(match.group(1)):
            yield match.span(1)


def _named(data: bytes, match: "re2._Match", values: Values) -> Span | None:
    """Return the span of the value that follows a name, if it is a secret."""
    password, closed, between, quote = match.groups()
    start = match.end()
    if password and not _begins_name(data, match.start(), password):
        return None
    if between == b"," and not (closed and quote):
        return None
    if quote:
        end = _closing(data, start, quote)
        value = data[start : min(end, start + JUDGED)]
        secret = _is_password(value) and between != b"," if password else _is_secret(value, between)
        return (start, end) if secret and value else None
    pattern = BARE if values == "quoted" else WORD if values == "words" else LINE
    bare = pattern.match(data, start, start + JUDGED)
    if not bare:
        return None
    value = _without_comment(bare.group())
    if between == b"=" and b";" in value and b"=" in value:  # a part of a connection string
        value = value[: value.index(b";")]
    end = start + len(value)
    if _is_code(value) or data[end : end + 1] == b"(":
        return None
    after = data[end : end + 1]
    if values == "quoted" or between == b">":
        environment = (
            data[match.start() - 1 : match.start()] != b"." and between == b"=" and _is_setting_line(data, match.start(), end)
        )
        plain = environment or (between == b">" and after == b"<") or (between == b"=" and after == b";")
        found = _looks_made(value, between) or (plain and bool(password) and _is_password(value))
    else:
        found = _is_password(value) if password else _is_secret(value, between)
    if not found or _is_placeholder(value):
        return None
    return start, TOKEN_END.match(data, end).end() if len(value) == JUDGED else end


def _begins_name(data: bytes, at: int, word: bytes) -> bool:
    """Return whether a word is not the end of another word: bypass is no password, dbPass and db_pass are."""
    return len(word) > 4 or at == 0 or data[at - 1] not in LETTER or (data[at] not in SMALL and data[at - 1] in SMALL)


def _closing(data: bytes, start: int, quote: bytes) -> int:
    """Return the end of a literal: before its closing quote, or the end of its line (the cursor may be in it)."""
    limit = min(len(data), start + MAX_VALUE)
    if len(quote) < 3:
        newline = data.find(b"\n", start, limit)
        limit = limit if newline < 0 else newline
    at = data.find(quote, start, limit)
    while len(quote) == 1 and at > start and data[at - 1] == 0x5C:  # a backslash
        at = data.find(quote, at + 1, limit)
    return limit if at < 0 else at


def _is_setting_line(data: bytes, name: int, end: int) -> bool:
    """Return whether NAME=value stands alone on its line, with a name in capitals, as in a file of environment variables."""
    line = data.rfind(b"\n", max(0, name - 60), name) + 1
    head = data[line:name].removeprefix(b"export ")
    after = data[end : end + 1]
    return after in (b"", b"\n", b"\r") and head == head.upper() and b" " not in head and data[name : name + 1].isupper()


def _without_comment(value: bytes) -> bytes:
    cut = value.find(b" #")
    return (value if cut < 0 else value[:cut]).rstrip(b" \t\r,;\"'")


def _is_code(value: bytes) -> bool:
    return CODE.search(value) is not None


def _is_placeholder(value: bytes) -> bool:
    return PLACEHOLDER.match(value) is not None


def _is_password(value: bytes) -> bool:
    """Return whether a password's value is one, and no placeholder, message, name or path."""
    if len(value) < 4 or _is_placeholder(value):
        return False
    if looks_random(_text(value), 6):
        return True
    return not PROSE.search(value) and value[:1] not in b"/.-[({"


def _is_secret(value: bytes, between: bytes = b"=") -> bool:
    if _is_placeholder(value) or b" " in value.strip():
        return False
    return looks_random(_text(value), 8, 0.15 if between != b"," else 0.25)


def _looks_made(value: bytes, between: bytes) -> bool:
    """Return whether a bare value in code is no name."""
    digits = sum(0x30 <= byte <= 0x39 for byte in value)
    return between[-1:] in b"=:" and not between.endswith(b"==") and digits > 2 and looks_random(_text(value), 10, 0.25)


def _is_user_and_password(value: bytes) -> bool:
    try:
        decoded = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return False
    return b":" in decoded and decoded.isascii()


def _text(value: bytes) -> str:
    return value.decode("latin-1")
