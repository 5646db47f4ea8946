"""Files as they stand in projects lose their secrets, and what is near a password's name and none stays."""

import random

import pytest

from evals.bench.redaction import missed_in_files, stays
from evals.bench.redaction.corpus import project_files
from infra.model.language import language
from infra.redaction.redactor import REDACTED, Redactor
from infra.redaction.texts import Texts

REDACTOR = Redactor()
MOST_MISSED = {True: 0.02, False: 0.035}
"""Share of the secrets of which a part may stay, by whether the client names the kind of file: words without a digit, which
nothing but their place gives away."""


@pytest.mark.parametrize("named", [True, False])
def test_few_secrets_of_project_files_stay(named: bool) -> None:
    """A quarter of the first 105 files' secrets stayed, and 40 % of the further files'."""
    counts = [missed_in_files(REDACTOR, random.Random(seed), named=named) for seed in range(4)]
    tried = sum(count for count, _ in counts)
    staying = [(path, secret) for _, files in counts for path, secrets in files.items() for secret in secrets]
    assert tried > 1_500 and len(staying) <= MOST_MISSED[named] * tried, staying


def test_the_same_files_are_found_wherever_the_cursor_is() -> None:
    """Each secret of a line's file is cut in its middle: its halves are in prefix and suffix."""
    whole = {file.path: file for file in project_files(random.Random(1))}
    for path in ("docker-compose.yml", "secret.yaml", "application.yml", ".npmrc", "users.sql", "main.go", "config.ts"):
        file = whole[path]
        for secret in file.secrets:
            at = file.text.index(secret) + len(secret) // 2
            redacted = REDACTOR.redact(Texts(file.text[:at], (), file.text[at:], language(path)))
            assert not stays(secret, redacted.prefix + redacted.suffix), (path, secret)


@pytest.mark.parametrize(
    "text",
    [
        "password = get_password(user)",
        "password: str = Field(min_length=8)",
        "password = models.CharField(max_length=128)",
        "'password' => ['required', 'string', 'min:8', 'confirmed'],",
        '"password": {"type": "string", "minLength": 8},',
        'password = request.form["password"]',
        "const { password } = req.body;",
        'errors.add("password", "is too short")',
        'label = {"password": "Enter your password"}',
        'if password != confirm: raise ValueError("passwords differ")',
        'secret = client.secrets.kv.v2.read_secret_version(path="app/db")',
        'os.environ["DB_PASSWORD"]',
        'os.getenv("DB_PASSWORD", "")',
        'process.env.DB_PASSWORD ?? ""',
        'parser.add_argument("--password", "-p", required=True)',
        'parser.add_argument("--password-file", default="/run/secrets/db")',
        "password: ${DB_PASSWORD}",
        "password: ${DB_PASSWORD:?not set}",
        "password = var.db_password",
        "password: {{ .Values.db.password }}",
        'password: "{{ vault_db_password }}"',
        "SET PASSWORD FOR app = ?;",
        "INSERT INTO users (name, password) VALUES (?, ?)",
        "password text NOT NULL,",
        "auth = (user, password)",
        'client = Client("service", "region")',
        "tokens = ['<s>', '</s>', 'hello', 'world']",
        'passwords = [row["password"] for row in rows]',
        "password:\n  min: 8\n  max: 64\n",
        "password: |\n  the rules of a password follow\n",
        'input type="password" id="password2" name="password2"',
        "author's intent, and the authors or editors",
        "secret_name: app-db-credentials",
        "The password is base64-encoded and hashed with sha256.",
        'hash_password(password, algorithm="pbkdf2_sha256")',
    ],
)
@pytest.mark.parametrize("language", ["py", "yaml", ""])
def test_what_is_no_secret_stays(text: str, language: str) -> None:
    assert REDACTED not in REDACTOR.text(text + "\n", language)
