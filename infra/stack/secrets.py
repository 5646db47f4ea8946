"""The local stack's secrets: made once, kept in its state directory, readable by its owner alone."""

import os
import secrets
from pathlib import Path

from infra.settings import SECRETS_NAME


def ensure(state: Path) -> Path:
    """Make the secrets file where it is missing; gives back where it is."""
    file = state / SECRETS_NAME
    if file.exists():
        return file
    state.mkdir(parents=True, exist_ok=True)
    text = (
        "# Made on the first start. Delete it together with this directory, not alone: the S3 server's data and\n"
        "# the stored user hashes belong to these keys.\n"
        f'[store]\naccess_key = "{secrets.token_hex(10)}"\nsecret_key = "{secrets.token_hex(20)}"\n\n'
        f'[serving]\ntoken = "{secrets.token_urlsafe(24)}"\nuser_secret = "{secrets.token_hex(32)}"\n'
    )
    partial = file.with_suffix(f".{os.getpid()}")
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    os.replace(partial, file)
    return file
