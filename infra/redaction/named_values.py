"""Values found by their name: `password = "..."`, `API_KEY: ...`, `--token ...`, `https://user:...@host`.

In code only a literal is a secret; in a file of settings a value may stand without quotes (infra/redaction/file_kind.py). An
unquoted value that looks random is a secret anywhere.
"""

from collections.abc import Iterator

import re2

from infra.redaction.classify import is_chosen, is_code, is_password, is_placeholder, is_secret, text_of
from infra.redaction.file_kind import Values
from infra.redaction.patterns import TOKEN_END, Span, compile_bytes
from infra.redaction.randomness import looks_random

MAX_VALUE = 4_096
"""Bytes of a literal; what follows them is searched for secrets again."""
JUDGED = 128
"""Bytes of a value that decide whether it is a secret: names may follow each other closely, so each must be cheap."""
PASSWORD = (
    r"pass(?:word|wd|phrase|code)?|pwd|pw|psk|contrase(?:ñ|n)a|passwort|kennwort|mot_?de_?passe|senha|wachtwoord|"
    r"(?:П|п)ароль|密码|密碼|パスワード"
)
KEY_OF = (
    r"(?:api|app|application|access|account|admin|auth|client|consumer|crypto|cipher|encryption|decryption|encrypt|hmac|host|"
    r"integration|jwt|licen[sc]e|master|private|primary|secondary|rsa|sas|secret|security|server|service|session|shared|"
    r"signing|sign|sse|ssh|storage|user|webhook|write|pre_?shared|registry|deploy|ingest|routing)"
)
SECRET = (
    rf"{KEY_OF}[_\-. ]?key(?:[_\-. ]?(?:secret|value))?|secret|token|credentials?|creds?|bearer|auth|authorization|signature|"
    r"salt|pepper|seed|nonce|cookie|session[_\-]?id|dsn|apikeys?|web[_\-]?hook(?:[_\-]?url)?|conn(?:ection)?[_\-]?str(?:ing)?|"
    r"_key|\bpin"
)
"""Names of random values: unlike passwords, they are never words."""
TAIL = (
    r"(s)?(?:[_\-.]?(?:value|val|text|txt|str|string|b64|base64|hex|raw|plain|data|default|prod|production|dev|test|stage|staging|"
    r"old|new|live|main|confirmation|confirm|again|repeat|[0-9]{1,2}))?"
)
WRAPPER = (
    r"((?:Secret(?:Str|Bytes)?|bytes|bytearray|str|String::from|\[\]byte|Some|Buffer\.from|new String|"
    r"(?:base64\.)?b64decode|Secret\.new|Field|useState(?:<string>)?|mutableStateOf)\((?:default[ \t]*=[ \t]*)?)?"
)
LEAD = r"((?:\[\]string)?[(\[{]?[ \t]*\\?\r?\n[ \t]*|(?:\[\]string)?[(\[{][ \t]*)?"
"""A list, or a value on the next line."""
OPENING = r"""(?:[rbfuRBFUL@$]{0,2}(\\?(?:\"\"\"|'''|["'`])))?"""
OTHERWISE = r"(?:\?\?=?|\|\|=?|\?:|[ \t]or[ \t]|\.unwrap_or(?:_else)?\((?:\|_?\|[ \t]*)?|\{)"
"""Operators between an optional value and its default: `env.PASSWORD ?? "..."`."""
ASSIGNED = (
    r"(?::[ \t]*[|>][+\-]?[0-9]?[ \t]*\r?\n[ \t]+|"  # a block scalar
    r"(?::[ \t]*[\w.\[\]|?&<> ]{1,40})?[ \t]*(?:={1,3}|:=|\+=|!=)>?|:|=>"  # a type may stand between a name and its value
    r"""|[ \t]*\n[ \t]*value:|,[ \t]*\n?[ \t]*\\?["']?value\\?["']?[ \t]*[:=]|[ \t]+value=|,(?:[ \t]*default[ \t]*=)?|\(|"""
    rf"[ \t]*{OTHERWISE})"
)
NAMED = compile_bytes(
    rf"""(?:({PASSWORD})|(?:{SECRET})){TAIL}(\\?["'])?[\])]{{0,2}}(>|[ \t]*(?:{ASSIGNED}))[ \t]*{LEAD}{WRAPPER}{OPENING}""",
    ignore_case=True,
)
BLOCK = compile_bytes(r"^:[ \t]*[|>]")
BY_NAME = compile_bytes(
    r"(?:set_?env|putenv|set_?var|(?:set|get)_?property|getenv|environ\.get|\benv|fetch|get_?or_?(?:else|default)|define|config|"
    r"setdefault|\.put|\.set|\.add|header|flag\.\w{1,12}|from-literal)\([ \t]*\\?[\"'][\w.\-]*$",
    ignore_case=True,
)
"""Before a name: a call with the name and its value, or its default."""
SETTER = compile_bytes(r"(?:\.|->|::|\b[sS]et_?|\b[wW]ith_?)\w{0,30}$")
"""Before a name: the name is a method that takes the value."""
CHOSEN = compile_bytes(r"^(?:secret|signing|session|jwt)", ignore_case=True)
"""Names of secrets that people may choose themselves."""
BEFORE = 90
"""Bytes before a name that show the call."""
NEXT = compile_bytes(r"""\s{0,40},\s{0,80}[rbfuRBFUL@$]{0,2}(\\?["'`])""")
"""From the end of a literal in a list to the next one."""
MOST_LISTED, MOST_AHEAD = 200, 130
"""Most literals of a list that are checked, and bytes between two of them."""
END_OF_LINE = (b"", b"\n", b"\r")
AROUND_PART = (b" ", b";", b"&", b"?", b"'", b'"', b"=", b"\n", b"\r")
"""Delimiters of a part of a connection string: `host=db password=...`."""
BARE = compile_bytes(r"""[^\s"'`,;(){}\[\]<>]+""")
WORD = compile_bytes(r"""[^\s"'`;<>]+""")
LINE = compile_bytes(r"[^\n]*")
LETTER = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
IN_NAMES = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
SMALL = frozenset(b"abcdefghijklmnopqrstuvwxyz")


def spans(data: bytes, values: Values) -> Iterator[Span]:
    """Yield the spans of values with a secret's name, in bytes; `values`: how the file writes values."""
    covered = 0
    for match in NAMED.finditer(data):
        if match.start() >= covered:
            for span in _named(data, match, values):
                covered = span[1]
                yield span


def _named(data: bytes, match: "re2._Match", values: Values) -> Iterator[Span]:
    """Yield the span of the value that follows a name, or of each value of a list, if it is a secret."""
    password, _, closed, between, lead, call, quote = match.groups()
    if password and not _begins_name(data, match.start(), password):
        return
    if _is_comma(between) and not (quote and (closed or data[match.start() - 1 : match.start()] == b":")):
        return
    if between == b"(" and not (quote and SETTER.search(data[max(0, match.start() - BEFORE) : match.start()])):
        return
    if (lead and lead.lstrip().startswith(b"{")) or (call and not quote):
        return
    if quote:
        yield from _literals(data, match)
    elif BLOCK.match(between):
        yield from _block(data, match)
    elif not _is_default(between):
        yield from _bare(data, match, values)


def _is_comma(between: bytes) -> bool:
    """Return whether the value is the next argument or element after its name, which may be unrelated."""
    return between.lstrip()[:1] == b"," and b"value" not in between.lower()


def _is_default(between: bytes) -> bool:
    """Return whether a value is the default of an optional one (OTHERWISE)."""
    return between.strip()[:1].lower() in (b"?", b"|", b"o", b".", b"{")


def _literals(data: bytes, match: "re2._Match") -> Iterator[Span]:
    """Yield the spans of a value in quotes, and of those after it in a list."""
    password, plural, _, between, lead, _, quote = match.groups()
    start, listed = match.end(), (lead or b"").strip()
    comma, before = _is_comma(between), data[max(0, match.start() - BEFORE) : match.start()]
    by_name = comma and (BY_NAME.search(before) is not None or before.endswith(b"set :"))
    chosen = CHOSEN.match(match.group()) is not None and not comma
    default = _is_default(between)
    for _ in range(MOST_LISTED):
        end = _closing(data, start, quote)
        value = data[start : min(end, start + JUDGED)]
        if password and listed.endswith(b"[") and not plural:  # rules of a form may be listed by the field's name
            secret = is_chosen(value)
        elif password or by_name or default:
            secret = is_password(value) and (not comma or (by_name and b" " not in value))
        else:
            secret = is_secret(value, 0.25 if comma or listed else 0.15) or (chosen and is_chosen(value))
        if secret:
            yield start, end
        following = NEXT.match(data, end + len(quote), end + len(quote) + MOST_AHEAD) if listed in (b"[", b"(") else None
        if not following or len(quote) > 2:
            return
        start, quote = following.end(), following.group(1)


def _block(data: bytes, match: "re2._Match") -> Iterator[Span]:
    """Yield the span of a YAML block: its lines, as far as they are indented like the first."""
    start = match.end()
    indentation = start - data.rfind(b"\n", 0, start) - 1
    value = LINE.match(data, start, start + JUDGED).group().rstrip()
    if not (is_password(value) if match.group(1) else is_secret(value)):
        return
    end, limit = start + len(value), min(len(data), start + MAX_VALUE)
    while (newline := data.find(b"\n", end, limit)) >= 0 and data[newline + 1 : newline + 1 + indentation].isspace():
        end = newline + 1 + len(LINE.match(data, newline + 1, limit).group())
    yield start, end


def _bare(data: bytes, match: "re2._Match", values: Values) -> Iterator[Span]:
    """Yield the span of a value without quotes."""
    password, _, _, between, lead, _, _ = match.groups()
    start = match.start(5) if lead else match.end()
    if (
        between[:1] == b":"
        and between[-1:] == b"="
        and b" =" not in between
        and data[match.end(4) : match.end(4) + 1] in END_OF_LINE
    ):
        start = match.start(4) + 1 + len(between[1:]) - len(between[1:].lstrip())  # the end of base64, and no type before a value
        between = b":"
    elif b"\n" in (lead or b""):
        return
    pattern = BARE if values == "quoted" else WORD if values == "words" else LINE
    bare = pattern.match(data, start, start + JUDGED)
    if not bare:
        return
    value = _without_comment(bare.group())
    if between == b"=" and b";" in value and b"=" in value:  # a part of a connection string
        value = value[: value.index(b";")]
    if between == b"=" and data[match.start() - 1 : match.start()] in (b"?", b"&"):  # a part of an address
        value = value.partition(b"&")[0]
    end = start + len(value)
    if is_code(value) or data[end : end + 1] == b"(":
        return
    after = data[end : end + 1]
    if values == "quoted" or between == b">":
        before = data[max(0, match.start() - BEFORE) : match.start()].rstrip(IN_NAMES)[-1:]
        environment = before != b"." and between.strip() in (b"=", b":=") and _is_setting_line(data, match.start(), end)
        plain = environment or (between == b">" and after == b"<") or (between == b"=" and after == b";")
        within = between == b"=" and before in AROUND_PART and after in AROUND_PART and is_chosen(value)
        found = _looks_made(value, between) or (bool(password) and (within or (plain and is_password(value))))
    else:
        found = is_password(value) if password else is_secret(value)
    if found and not is_placeholder(value):
        yield start, TOKEN_END.match(data, end).end() if len(value) == JUDGED else end


def _begins_name(data: bytes, at: int, word: bytes) -> bool:
    """Return whether a word is not the end of another word: bypass does not name a password, dbPass and db_pass do."""
    return len(word) > 4 or at == 0 or data[at - 1] not in LETTER or (data[at] not in SMALL and data[at - 1] in SMALL)


def _closing(data: bytes, start: int, quote: bytes) -> int:
    """Return the end of a literal: before its closing quote, or the end of its line (the cursor may be in it)."""
    limit = min(len(data), start + MAX_VALUE)
    if len(quote) < 3:
        newline = data.find(b"\n", start, limit)
        limit = limit if newline < 0 else newline
    at = data.find(quote, start, limit)
    while len(quote) == 1 and at > start and _is_escaped(data, at, start):
        at = data.find(quote, at + 1, limit)
    return limit if at < 0 else at


def _is_escaped(data: bytes, at: int, start: int) -> bool:
    """Return whether a quote follows an odd number of backslashes; only the last ones of a long run are read."""
    before = data[max(start, at - 16) : at]
    return (len(before) - len(before.rstrip(b"\\"))) % 2 == 1


def _is_setting_line(data: bytes, name: int, end: int) -> bool:
    """Return whether NAME=value stands alone on its line, with a name in capitals, as in a file of environment variables."""
    line = data.rfind(b"\n", max(0, name - 60), name) + 1
    head = data[line:name].removeprefix(b"export ").removeprefix(b"ENV ").removeprefix(b"ARG ")
    after = data[end : end + 1]
    return after in (b"", b"\n", b"\r") and head == head.upper() and b" " not in head and data[name : name + 1].isupper()


def _without_comment(value: bytes) -> bytes:
    cut = min((at for mark in (b" #", b" --") if (at := value.find(mark)) >= 0), default=len(value))
    return value[:cut].rstrip(b" \t\r,;\"'")


def _looks_made(value: bytes, between: bytes) -> bool:
    """Return whether a bare value in code is not a name."""
    digits = sum(0x30 <= byte <= 0x39 for byte in value)
    return between[-1:] in b"=:" and not between.endswith(b"==") and digits > 2 and looks_random(text_of(value), 10, 0.25)
