"""No secret of any kind stays, in whichever form of file and wherever the cursor is, and ordinary code stays as it is."""

import random
import sysconfig
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evals.bench.redaction import changed, stays
from evals.bench.redaction.corpus import draw, ordinary_requests, private_key
from infra.redaction.file_kind import values
from infra.redaction.redactor import REDACTED, Redactor
from infra.redaction.texts import Texts
from tests.infra.redaction.made_up import BY_NAME, cases

REDACTOR = Redactor()
MADE = {kind: list(rows) for kind, rows in groupby(sorted(cases(random.Random(7))), key=lambda row: row[0])}


def test_there_are_at_least_eighty_kinds_in_six_forms() -> None:
    forms = {kind: {form for _, form, *_ in rows} for kind, rows in MADE.items()}
    assert sum(len(of_kind) == 6 for of_kind in forms.values()) >= 80


@pytest.mark.parametrize("kind", MADE)
def test_a_secret_stays_in_no_form_of_file(kind: str) -> None:
    """Whether the client names the kind of file, or only the text shows it."""
    for _, form, ending, text, secret in MADE[kind]:
        for language in (ending, ""):
            redacted = REDACTOR.text(text, language)
            assert not stays(secret, redacted) and REDACTED in redacted, (form, language, redacted)


@pytest.mark.parametrize("kind", MADE)
def test_a_secret_stays_in_no_document_whatever_ends_its_lines(kind: str) -> None:
    for _, form, ending, text, secret in MADE[kind]:
        for end in ("\r\n", "\r"):
            redacted = REDACTOR.text(text.replace("\n", end), ending)
            assert not stays(secret.replace("\n", end), redacted) and REDACTED in redacted, (form, ending, redacted)


@given(
    case=st.sampled_from([row for rows in MADE.values() for row in rows]),
    first=st.integers(0, 10_000),
    second=st.integers(0, 10_000),
    named=st.booleans(),
    other=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_no_part_of_a_secret_across_the_cursor_stays(
    case: tuple[str, str, str, str, str], first: int, second: int, named: bool, other: bool
) -> None:
    """Its first part is in the prefix, the rest in the completion and the suffix; or the completion is other code."""
    _, _, ending, text, secret = case
    begin = text.index(secret) if secret in text else text.index(secret[:4])
    cuts = sorted(begin + cut % (len(secret) + 1) for cut in (first, first if other else second))
    middle = "f(x)" if other else text[cuts[0] : cuts[1]]
    texts = Texts(text[: cuts[0]], (middle,), text[cuts[1] :], ending if named else "")
    redacted = REDACTOR.redact(texts)
    parts = (redacted.prefix, *(() if other else redacted.middles), redacted.suffix)
    assert not any(stays(secret, part) for part in parts), redacted


@pytest.mark.parametrize("kind", ["RSA ", "EC ", "OPENSSH ", "ENCRYPTED ", ""])
@given(begin=st.integers(0, 7), end=st.integers(0, 8))
@settings(max_examples=20, deadline=None)
def test_no_line_of_a_private_key_stays_wherever_the_text_is_cut(kind: str, begin: int, end: int) -> None:
    lines = private_key(random.Random(begin), kind).split("\n")
    redacted = REDACTOR.text("\n".join(["x = 1", *lines[begin:end], "y = 2" if end == 8 else ""]))
    assert not any(line in redacted for line in lines[1:-1])
    assert "y = 2" in redacted or end < 8


@pytest.mark.parametrize(
    ("line", "language", "secret"),
    [
        ("machine api.internal login ada password l0velace", "", "l0velace"),
        ('<add key="Password" value="l0velace"/>', "xml", "l0velace"),
        ("<password>l0velace</password>", "xml", "l0velace"),
        ("DATABASE_URL=postgres://ada:l0ve@lace9@db.internal/app", "", "lace9"),
        ('setenv("API_KEY", "qZ8vX2mK5tR7wB3n");', "c", "qZ8vX2mK5tR7wB3n"),
        ("- name: DB_PASSWORD\n  value: l0velace9", "yaml", "l0velace9"),
        ("[Interface]\nPrivateKey = qZ8vX2mK5tR7wB3nJ6hD9cF4gL1pS0aYuTeqZ8vX2m0=", "", "qZ8vX2mK5tR7wB3n"),
        ('password: Final[str] = "correct horse battery"', "py", "correct horse battery"),
        ('password := "sunshine"', "go", "sunshine"),
        ('salt = "7d9fb36e1c2a48500dcab6ff"', "py", "7d9fb36e1c2a48500dcab6ff"),
        ('PASSWORD = """l0ve\nlace9"""', "py", "l0ve"),
        ("spring.datasource.password = l0velace", "properties", "l0velace"),
        ('curl -H "Authorization: Bearer qZ8vX2mK5tR7wB3nJ6hD9c" x', "sh", "qZ8vX2mK5tR7wB3nJ6hD9c"),
        ('x = "é" * 3; password = "l0velace"; y = "é"', "py", "l0velace"),
    ],
)
def test_a_secret_of_a_form_of_its_own_is_found(line: str, language: str, secret: str) -> None:
    redacted = REDACTOR.text(f"{line}\n", language)
    assert secret not in redacted and REDACTED in redacted


@pytest.mark.parametrize(
    "line",
    [
        "password = get_password(user)",
        'password = os.environ["PASSWORD"]',
        "def login(user: str, password: str) -> Token:",
        "    password=settings.password,",
        'parser.add_argument("--password", help="the password")',
        'token = tokenizer.decode(ids)\nif token == "<unk>":',
        'getpass("Password: ")',
        'WAIT = "waitForTaskToken"',
        "secret: ${DB_SECRET}",
        "for key, value in sorted(keys.items()):",
        "commit 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b",
        'sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"',
        'url = "http://user:password@host/"',
        "class SecretStrConfigurationProvider2Test(BaseTestCase):",
        "the per-token prediction of a bearer of news",
        "password: [redacted]",
    ],
)
@pytest.mark.parametrize("language", ["py", ""])
def test_code_around_secrets_stays(line: str, language: str) -> None:
    assert REDACTOR.text(line, language) == line


def test_of_ordinary_code_one_request_in_two_hundred_loses_anything_at_most() -> None:
    """A small sample; bench `redaction` measures more."""
    requests = list(ordinary_requests([Path(sysconfig.get_paths()["stdlib"])], 600, random.Random(3)))
    lost = [request for request in requests if changed(REDACTOR, request)]
    assert len(requests) == 600 and len(lost) <= 3, lost


@pytest.mark.parametrize(
    "name", ["mot_de_passe", "senha", "db_senha", "wachtwoord", "contraseña", "Пароль", "密码", "パスワード"]
)
def test_a_password_is_found_by_its_name_in_other_languages(name: str) -> None:
    assert REDACTOR.text(f'x = 1\n{name} = "l0velace"\n') == f'x = 1\n{name} = "{REDACTED}"\n'


def test_a_name_is_enough_whatever_its_case() -> None:
    rng = random.Random(5)
    for name, template in BY_NAME.values():
        value = draw(template, rng)
        camel = name.title().replace("_", "")
        for written in (name.upper(), camel[0].lower() + camel[1:], name.replace("_", "-")):
            assert not stays(value, REDACTOR.text(f'{{"{written}": "{value}"}}')), (written, value)


@pytest.mark.parametrize("ending", ["local", "bak", "example", "tmpl"])
def test_of_an_ending_of_any_kind_the_text_tells_how_values_stand(ending: str) -> None:
    settings, code = b"HOST=db\nPORT=80\nTOKEN=abc\n", b"def f(x):\n    return x\n"
    assert values(ending, settings, b"") == values("", settings, b"") == "words"
    assert values(ending, code, b"") == "quoted" and values("py", settings, b"") == "quoted"
