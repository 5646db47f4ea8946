"""Who may do what: bearer tokens with their projects, roles and rates, and users as keyed hashes.

python -m serving.access NAME [--project P] [--role R]   print a new token and its lines of settings
python -m infra.identity NAME                            print the keyed hash under which a user is stored
"""

import argparse
import base64
import hashlib
import hmac
import json
import re
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

from pydantic import SecretStr

from infra.identity import user_hash
from infra.settings.schema import AccessToken, Role, Serving, Terms, UserTerms

PROJECT = re.compile(r"[\w.-]{1,64}")
PROJECT_RULE = "1 to 64 letters, digits, dots, dashes and underscores"
ROLES: tuple[Role, ...] = get_args(Role)


class Denied(Exception):
    """The request is not allowed; `status` is that of the response."""

    def __init__(self, status: int, message: str, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_seconds = retry_seconds


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    project: str
    user: str
    """Keyed hash of the user's id."""
    client: str
    """The client's name (gateway/dialects)."""
    opted_out: bool
    """Whether the text of its events is left out."""
    experiments: bool = True
    """Whether it takes part in A/B tests."""
    version: str = ""
    """Version that the settings pin it to; empty: none."""


class RateLimiter:
    """A token bucket: `per_minute` requests at once, refilled at `per_minute` requests a minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._rate, self._capacity = per_minute / 60, float(per_minute)
        self._clock = clock
        self._left, self._updated = self._capacity, clock()

    def wait(self) -> float:
        """Admit a request and return 0, or return the seconds until one is admitted."""
        now = self._clock()
        self._left = min(self._left + (now - self._updated) * self._rate, self._capacity)
        self._updated = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0


@dataclass(frozen=True)
class Token:
    """A token that the settings allow."""

    name: str
    digest: bytes
    """SHA-256."""
    projects: tuple[str, ...]
    """Empty: all."""
    roles: frozenset[Role]
    limiter: RateLimiter


class Access:
    """Checks tokens and names callers."""

    def __init__(self, settings: Serving, clock: Callable[[], float] = time.monotonic) -> None:
        self.user_secret = _secret(settings.user_secret, "user_secret")
        """Key of the keyed hash of users."""
        self._settings = settings
        self._tokens = [_configured_token(name, token, clock) for name, token in settings.tokens.items()]
        shared = _secret(settings.token, "token")
        if settings.admin_token:
            self._tokens.append(self._shared_token("token", shared, ("complete", "feedback"), clock))
            shared = settings.admin_token.get_secret_value().encode()
        self._tokens.append(self._shared_token("admin", shared, ROLES, clock))

    def check(self, headers: Mapping[str, str], role: Role) -> Token:
        """Return the token of a request, if it has this role.

        Raises:
            Denied: 401 for a missing or wrong token, 403 for a token without the role, 429 for too many requests.
        """
        credentials = _credentials(headers)
        if not credentials:
            raise Denied(401, "missing token: send `Authorization: Bearer TOKEN` (in Continue: apiKey)")
        # Compare all tokens, each in constant time, so that the duration tells nothing about any of them.
        digest = _digest(credentials)
        matches = [token for token in self._tokens if hmac.compare_digest(digest, token.digest)]
        if not matches:
            raise Denied(401, "wrong token")
        token = matches[-1]
        if role not in token.roles:
            raise Denied(403, f"token {token.name}: this needs the role {role}, the token has {_joined(token.roles)}")
        if seconds := token.limiter.wait():
            raise Denied(429, f"token {token.name}: too many requests; wait {seconds:.1f} s", int(seconds) + 1)
        return token

    def caller(self, headers: Mapping[str, str], token: Token, user: str | None, client: str) -> Caller:
        """Return the sender of a request; `user` is the body's, used if there is no X-User-ID.

        Raises:
            Denied: 400 for an invalid project name, 403 for a project that is not the token's.
        """
        project = headers.get("x-project-id", token.projects[0] if token.projects else "default")
        if not PROJECT.fullmatch(project):
            raise Denied(400, f"X-Project-ID: expected {PROJECT_RULE}")
        if token.projects and project not in token.projects:
            raise Denied(403, f"X-Project-ID: token {token.name} has {_joined(token.projects)}, not {project}")
        hashed = user_hash(self.user_secret, headers.get("x-user-id") or user or "token:" + token.digest.hex())
        terms = self._terms(project, hashed)
        opts_out = headers.get("x-tabloop-opt-out", "") not in ("", "0", "false")
        return Caller(project, hashed, client, opts_out or not terms.logged, terms.experiments, terms.version)

    def _shared_token(self, name: str, token: bytes, roles: Sequence[Role], clock: Callable[[], float]) -> Token:
        """Return serving.token or serving.admin_token, which have every project."""
        limiter = RateLimiter(self._settings.requests_per_minute, clock)
        return Token(name, _digest(token), (), frozenset(roles), limiter)

    def _terms(self, project: str, user: str) -> Terms:
        """Return the terms of project and user together: each can refuse, and both must consent."""
        settings = self._settings
        of_project, of_user = settings.projects.get(project, settings.terms), settings.users.get(user, UserTerms())
        return Terms(
            logged=of_project.logged and of_user.logged,
            experiments=of_project.experiments and of_user.experiments,
            version=of_user.version or of_project.version,
        )


def _credentials(headers: Mapping[str, str]) -> bytes:
    """Return the bearer token, a browser's password, or the token in Continue's header `api-key`."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return credentials.strip().encode()
        case "basic":
            with suppress(ValueError):  # not base64, or not even ASCII
                return base64.b64decode(credentials, validate=True).partition(b":")[2]
    return headers.get("api-key", "").encode()


def _configured_token(name: str, token: AccessToken, clock: Callable[[], float]) -> Token:
    limiter = RateLimiter(token.requests_per_minute, clock)
    return Token(name, bytes.fromhex(token.sha256), token.projects, frozenset(token.roles), limiter)


def _digest(token: bytes) -> bytes:
    """Return a plain hash: tokens are long and random, so it cannot be inverted by trying."""
    return hashlib.sha256(token).digest()


def _joined(values: Sequence[str] | frozenset[Role]) -> str:
    return ", ".join(sorted(values))


def _secret(secret: SecretStr | None, name: str) -> bytes:
    if secret is None:
        raise SystemExit(f"serving.{name} is not set: `make up` generates it, or set TABLOOP_SERVING__{name.upper()}")
    return secret.get_secret_value().encode()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m serving.access", description="Print a new token and its lines of settings.")
    parser.add_argument("name", help="person or program that uses the token")
    parser.add_argument(
        "--project", action="append", type=_project, default=[], help="project of the token (default: all); may be repeated"
    )
    parser.add_argument(
        "--role",
        action="append",
        choices=ROLES,
        default=[],
        help="role (default: complete and feedback); may be repeated",
    )
    options = parser.parse_args(arguments)
    token, name = secrets.token_urlsafe(24), json.dumps(options.name, ensure_ascii=False)
    lines = [f"sha256 = {json.dumps(_digest(token.encode()).hex())}"]
    lines += [f"projects = {json.dumps(options.project, ensure_ascii=False)}"] if options.project else []
    lines += [f"roles = {json.dumps(options.role)}"] if options.role else []
    print(f"# give to {name}, stored nowhere: {token}\n[serving.tokens.{name}]", *lines, sep="\n")
    return 0


def _project(name: str) -> str:
    if not PROJECT.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{name!r}: expected {PROJECT_RULE}")
    return name


if __name__ == "__main__":
    sys.exit(main())
