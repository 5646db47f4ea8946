"""The local stack's secrets: generated once, in its state directory, readable only by the owner."""

import os
import secrets
from pathlib import Path

from infra.settings import SECRETS_NAME


def ensure(state: Path) -> Path:
    """Generate the secrets file if it is missing, and return its path."""
    file = state / SECRETS_NAME
    if file.exists():
        return file
    state.mkdir(parents=True, exist_ok=True)
    text = (
        "# Generated on the first start. Delete it only together with this directory: the S3 server's data and the\n"
        "# stored user hashes depend on these keys.\n"
        f'[store]\naccess_key = "{secrets.token_hex(10)}"\nsecret_key = "{secrets.token_hex(20)}"\n\n'
        f'[serving]\ntoken = "{secrets.token_urlsafe(24)}"\nuser_secret = "{secrets.token_hex(32)}"\n'
    )
    partial = file.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    os.replace(partial, file)
    return file
