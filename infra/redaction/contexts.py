"""Values found by their context without an assignment: arguments of commands and calls, parts of addresses, headers, SQL."""

import base64
import binascii
from collections.abc import Iterator

import re2

from infra.redaction.classify import is_chosen, is_code, is_password, is_placeholder, is_secret, text_of
from infra.redaction.named_values import JUDGED, PASSWORD, SECRET, WORD
from infra.redaction.patterns import TOKEN_END, Span, compile_bytes
from infra.redaction.randomness import looks_random

FLAG = compile_bytes(
    r"""[\s"'`\[(]--(?:[a-z0-9]+-)*(?:(pass(?:word|wd|phrase)?|pwd)|token|secret|api-?key|access-?key|secret-?key)"""
    r"""(?:[ \t]+["']?|["'][ \t]*,[ \t]*(?:default[ \t]*=[ \t]*)?["'])""",
    ignore_case=True,
)
COMMAND = compile_bytes(
    r"""(?:curl|wget|https?)\b[^\n]{0,300}[ \t](?:-u|--user|--proxy-user)[ =]?["']?[^\s:"'$]{1,64}:|"""
    r"""(?:mysql|mysqldump|mysqladmin|mariadb)\b[^\n]{0,200}[ \t]-p|sshpass[ \t]+-p[ \t]*["']?|"""
    r"""redis-cli\b[^\n]{0,100}[ \t]-a[ \t]+["']?|docker[ \t]+login\b[^\n]{0,100}[ \t]-p[ \t]+["']?|"""
    r"""openssl[ \t]+enc\b[^\n]{0,200}[ \t]-k[ \t]+["']?|htpasswd[ \t]+-[a-z]*b[a-z]*[ \t]+\S{1,100}[ \t]+\S{1,64}[ \t]+["']?|"""
    r"""-pass(?:in|out)?[ \t]+pass:|(?:login|user|account)[ \t]+\S{1,100}\s{1,20}pass(?:word|wd)?[ \t]+["']?|"""
    r"""(?:requirepass|masterauth)[ \t]+|"""
    r"""smbclient\b[^\n]{0,200}[ \t]-U[ \t]+["']?[^%\s]{1,64}%|net[ \t]+use\b[^\n]{0,60}\\\S{1,100}[ \t]+|"""
    r"""connect[ \t]+\w{1,64}/|"""
    r"""(?:^|\n)[\w.\-*]+:(?:[0-9]{2,5}|\*):[\w.\-*]+:[\w.\-*]+:|identified[ \t]+by[ \t]+["']|"""
    r"""(?:with|login|encrypted|set|user[ \t]+\S{1,64}|role[ \t]+\S{1,64})[ \t]+password[ \t]*=?[ \t]*N?["']|"""
    r"""=[ \t]*password\([ \t]*["']|"""
    r"""ConvertTo-SecureString[ \t]+(?:-String[ \t]+)?["']""",
    ignore_case=True,
)
DIRECTIVE = compile_bytes(
    rf"""(?:#[ \t]*define|(?:^|\n)[ \t]*(?:ENV|ARG|setx?))[ \t]+\w*?(?:({PASSWORD})|{SECRET})\w{{0,12}}[ \t]+["']?|"""
    rf"""\b(?:store|key|signing|keystore)(Password)[ \t]+["']|[{{ \t]:(password|passwd|pwd)[ \t]+"|"""
    rf"""aws[ \t]+configure[ \t]+set[ \t]+\w*(?:key|token)[ \t]+""",
    ignore_case=True,
)
QUOTED = r"""["'`]([^"'`\n]{4,200})"""
ARGUMENT = r"""["'`][^"'`\n]{0,200}["'`][ \t]*,\s{0,40}"""
CALLS = compile_bytes(
    rf"""(?:\blogin|authenticate|basic_?auth|credentials\.basic|\.auth|httpbasicauth|httpdigestauth|networkcredential|password_?auth(?:entication)?|"""
    rf"""usernamepassword\w*|auth[ \t]*=[ \t]*)[(\[][ \t]*{ARGUMENT}{QUOTED}|"""
    rf"""(?:getconnection|\bpdo|mysqli_connect|\bmysqli|dbi->connect|mysql_real_connect|mysqldb\.connect|pymysql\.connect)\("""
    rf"""[^"'`\n]{{0,40}}{ARGUMENT}{ARGUMENT}{QUOTED}|"""
    rf"""jwt\.(?:encode|sign|decode|verify)\([^"',\n]{{1,60}},[ \t]*{QUOTED}|"""
    rf"""wifi\.begin\([ \t]*{ARGUMENT}{QUOTED}|unsafe_?plain_?text\([ \t]*{QUOTED}|"""
    rf"""passw[^\n]{{0,60}}\b(?:fill|type|send_?keys|set_?value)\([ \t]*{QUOTED}|"""
    rf"""\.fill\([^\n]{{0,60}}passw[^\n,]{{0,20}},[ \t]*{QUOTED}|"""
    rf"""(?:\.load|getkey|passwordprotection|pbekeyspec|\.init)\([^"\n]{{0,60}}"([^"\n]{{4,80}})"\.toCharArray""",
    ignore_case=True,
)
"""Calls with a password among their arguments."""
PAIRS = compile_bytes(
    rf"""(?:client|connection|session|credentials?|creds|login|auth)\w{{0,12}}(?:::new|\.new)?[ \t]*[:=]?[ \t]*[(\[]"""
    rf"""[ \t]*{ARGUMENT}{QUOTED}["'`][ \t]*[)\]]|\.connect\([ \t]*{ARGUMENT}{ARGUMENT}{QUOTED}|"""
    rf"""[:.>]auth\([ \t]*{QUOTED}["'`]\)|"""
    rf"""omniauth[ \t]+:\w+,[ \t]*{ARGUMENT}{QUOTED}|\bAC[0-9a-f]{{32}}["'][ \t]*,[ \t]*{QUOTED}""",
    ignore_case=True,
)
"""Two literals, of which the second may be a secret."""
SPEC = compile_bytes(
    rf"""\$\{{[\w.\-]{{0,60}}?(?:{PASSWORD}|{SECRET})[\w.\-]{{0,20}}:[\-=]?([^}}\s"'{{]{{4,100}})\}}|"""
    rf"""variable[ \t]+"\w*?(?:{PASSWORD}|{SECRET})\w*"[ \t]*\{{[^{{}}]{{0,300}}?default[ \t]*=[ \t]*"([^"\n]{{4,200}})|"""
    rf"""(?:echo|printf)[ \t]+["']?([^"'\n|$]{{4,64}}?)["']?[ \t]*\|[ \t]*(?:sudo[ \t]+-S|chpasswd|passwd\b|docker[ \t]+login)""",
    ignore_case=True,
)
"""Defaults of settings, and the input that a shell pipes to a program that reads a password."""
STATED = compile_bytes(
    r"(?:(?:password|passphrase|pwd|pin|api key|token|secret)[ \t]+(?:is|was)|identified[ \t]+by)[: \t]+"
    r"[\"'`]?([^\s\"'`(){}<>]{8,64})",
    ignore_case=True,
)
"""A sentence that states a password."""
ALGORITHM = compile_bytes(r"base64|sha-?[0-9]|md5|utf|crypt|aes|x509|oauth|pbkdf|argon|rfc|[0-9]{4}-[0-9]{2}", ignore_case=True)
LINE_OF_TWO = compile_bytes(
    r"""(?:^|\n)[ \t]*[\w.\-]{0,40}(?:password|passwd|secret|token)[ \t]+["']?([^\s"';]{8,200})["']?;?[ \t]*(?:\r?\n|$)""",
    ignore_case=True,
)
"""A line of a name and a value, as some files of settings have them."""
WITH_DIGIT = compile_bytes(r"""["'`]([^"'`\s]{0,60}[0-9][^"'`\s]{0,60})["'`]""")
NEAR_NAME = compile_bytes(r"pass(?:word|wd|phrase|code)|\bpwd|_pwd|\bpass\b|_pass\b", ignore_case=True)
NUMBERED = compile_bytes(r"^[a-z][a-z_\-]*[0-9]{1,2}$|^[A-Za-z_]\w*(?:[.:/]\w+)+$|[<>(){}%\\]|^--?[a-z]|^[\W\d]+$")
"""A name, a path or a pattern."""
NEAR = 90
"""Bytes before a literal on its line in which a password's name counts."""
URL = compile_bytes(  # a password may have an @ that is not encoded: most clients split at the last one
    r"""://[^\s:/@"'<>`]{0,128}:([^\s/"'<>`]{1,256})@|jdbc:oracle:\w{1,10}:[\w.\-]{1,64}/([^\s@"'<>`]{1,128})@|"""
    r"""\b[\w.\-]{1,64}:([^\s/@"'<>`:]{4,128})@(?:tcp|unix)\("""
)
HEADER = compile_bytes(r"(?:bearer|token|bot|apikey|api-key|splunk)[ \t]+([A-Za-z0-9._~+/\-]{8,}=*)", ignore_case=True)
FIELD = compile_bytes(
    r"""(?:^|[\n"'`])[A-Z]\w{0,20}(?:-[A-Z]\w{0,20}){0,4}-(?:Token|Key|Secret|Password|Auth):[ \t]*([^\s"'`<>{}$]{8,200})|"""
    r"""\b\w{0,20}(?:session|sessid|sid|csrftoken|SESSION_?ID|SESSID)=([A-Za-z0-9%._~+/\-]{16,})|"""
    r"""[Dd]igest[ \t]+username=[^\n]{0,500}?\bresponse="([0-9a-fA-F]{32,64})""",
    ignore_case=False,
)
"""HTTP headers whose name ends in the kind of secret, and parts of cookies."""
BASIC = compile_bytes(r"basic[ \t]+([A-Za-z0-9+/]{6,}={0,2})", ignore_case=True)
INSERT = compile_bytes(
    r"insert[ \t]+into[ \t]+\S{1,80}[ \t]*\(([^()]{0,400}?)\b(?:password|passwd|pwd|secret|token|api_key)\b[^()]{0,400}\)\s{1,80}"
    r"values\s{0,40}\(",
    ignore_case=True,
)
"""SQL with a column of secrets; the group holds the columns before it."""
CELL = compile_bytes(r"""\s{0,40}(?:N?'([^'\n]{0,400})'|[^',()]{0,100})\s{0,40},?""")


def spans(data: bytes) -> Iterator[Span]:
    """Yield the spans of values found by their context, in bytes."""
    yield from _following(data)
    for pattern, is_one in (
        (CALLS, is_password),
        (PAIRS, is_chosen),
        (SPEC, is_password),
        (FIELD, is_secret),
        (STATED, _is_stated),
        (LINE_OF_TWO, _is_stated),
    ):
        for match in pattern.finditer(data):
            if is_one(match.group(match.lastindex)[:JUDGED]):
                yield match.span(match.lastindex)
    for match in URL.finditer(data) if b"@" in data else ():
        value = match.group(match.lastindex)
        if not is_placeholder(value) and value != b"port":
            yield match.span(match.lastindex)
    for match in HEADER.finditer(data):
        if looks_random(text_of(match.group(1)), 12, 0.2):
            yield match.span(1)
    for match in BASIC.finditer(data):
        if _is_user_and_password(match.group(1)):
            yield match.span(1)
    for match in INSERT.finditer(data):
        yield from _cell(data, match)
    yield from _near_names(data)


def _near_names(data: bytes) -> Iterator[Span]:
    """Yield the spans of literals of letters and digits that stand on one line after a password's name."""
    for match in WITH_DIGIT.finditer(data):
        value = match.group(1)
        if is_chosen(value) and not NUMBERED.search(value) and not ALGORITHM.search(value):
            line = max(data.rfind(b"\n", max(0, match.start() - NEAR), match.start()) + 1, match.start() - NEAR, 0)
            if NEAR_NAME.search(data[line : match.start()]):
                yield match.span(1)


def _following(data: bytes) -> Iterator[Span]:
    """Yield the spans of values after a flag, a command or a directive."""
    for pattern in (FLAG, COMMAND, DIRECTIVE) if b"--" in data else (COMMAND, DIRECTIVE):
        for match in pattern.finditer(data):
            start = match.end()
            value = WORD.match(data, start, start + JUDGED)
            is_one = is_password if pattern is COMMAND or any(match.groups()) else is_secret
            in_quotes = data[start - 1 : start] in (b'"', b"'")
            if value and (in_quotes or not is_code(value.group())) and is_one(value.group()):
                yield start, TOKEN_END.match(data, value.end()).end()


def _cell(data: bytes, match: "re2._Match") -> Iterator[Span]:
    """Yield the span of the value in the column of secrets."""
    at, columns = match.end(), match.group(1).count(b",")
    for number in range(columns + 1):
        cell = CELL.match(data, at, at + JUDGED)
        if not cell or cell.end() == at:
            return
        at = cell.end()
        if number == columns and cell.group(1) and is_password(cell.group(1)):
            yield cell.span(1)


def _is_stated(value: bytes) -> bool:
    stated = value.rstrip(b".,;:!?")
    return is_chosen(stated) and not ALGORITHM.search(stated) and not is_code(stated)


def _is_user_and_password(value: bytes) -> bool:
    try:
        decoded = base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return False
    return b":" in decoded and decoded.isascii()
