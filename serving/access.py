"""Who asks, and on what terms: the bearer token, the project, and the user as a keyed hash.

python -m serving.access NAME [--project P] [--role R]   a new token, and the lines of settings that let it in
python -m infra.identity NAME                            the keyed hash under which a user is stored
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
PROJECT_IS = "letters, digits, dot, dash and underscore, at most 64 of them"
UNSAFE = re.compile(r"[^\w.+-]")
ROLES: tuple[Role, ...] = get_args(Role)


class Denied(Exception):
    """The request may not do that."""

    def __init__(self, status: int, message: str, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_seconds = retry_seconds


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    project: str
    user: str
    """Keyed hash."""
    client: str
    opted_out: bool
    experiments: bool = True
    """Takes part in A/B tests."""
    version: str = ""
    """Version it is pinned to by the settings, or empty."""


class Bucket:
    """A token bucket: `rate` requests a second, a minute's worth at once."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._rate, self._most = per_minute / 60, float(per_minute)
        self._clock = clock
        self._left, self._seen = self._most, clock()

    def wait(self) -> float:
        """Take one request's worth: 0, or the seconds until there is one."""
        now = self._clock()
        self._left = min(self._left + (now - self._seen) * self._rate, self._most)
        self._seen = now
        if self._left < 1:
            return (1 - self._left) / self._rate
        self._left -= 1
        return 0.0


@dataclass(frozen=True)
class Known:
    """A token that is let in."""

    name: str
    digest: bytes
    projects: tuple[str, ...]
    roles: frozenset[Role]
    bucket: Bucket


class Access:
    """Checks tokens and names callers."""

    def __init__(self, settings: Serving, clock: Callable[[], float] = time.monotonic) -> None:
        self._secret = _needed(settings.user_secret, "user_secret")
        self._settings = settings
        self._known = [_known(name, token, clock) for name, token in settings.tokens.items()]
        shared = _needed(settings.token, "token")
        if settings.admin_token:
            self._known.append(self._own("token", shared, ("complete", "feedback"), clock))
            shared = settings.admin_token.get_secret_value().encode()
        self._known.append(self._own("admin", shared, ROLES, clock))

    def check(self, headers: Mapping[str, str], role: Role) -> Known:
        """The token of a request that may do this.

        Raises:
            Denied: 401 token missing or wrong, 403 not in this role, 429 more requests than it may send.
        """
        token = _sent(headers)
        if not token:
            raise Denied(401, "missing token: send `Authorization: Bearer TOKEN` (in Continue: apiKey)")
        # Every known one is compared, in constant time: how long it takes says nothing of any of them.
        digest = _digest(token)
        found = [known for known in self._known if hmac.compare_digest(digest, known.digest)]
        if not found:
            raise Denied(401, "wrong token")
        known = found[-1]
        if role not in known.roles:
            raise Denied(403, f"token {known.name}: this needs the role {role}, it has {_listed(known.roles)}")
        if seconds := known.bucket.wait():
            raise Denied(429, f"token {known.name}: more requests than it may send; wait {seconds:.1f} s", int(seconds) + 1)
        return known

    def caller(self, headers: Mapping[str, str], known: Known, user: str | None, client: str) -> Caller:
        """The sender of a request with that token.

        Raises:
            Denied: 400 a project that is none, 403 one that is not the token's.
        """
        project = headers.get("x-project-id", known.projects[0] if known.projects else "default")
        if not PROJECT.fullmatch(project):
            raise Denied(400, f"X-Project-ID: {PROJECT_IS}")
        if known.projects and project not in known.projects:
            raise Denied(403, f"X-Project-ID: token {known.name} is not for project {project} but for {_listed(known.projects)}")
        hashed = user_hash(self._secret, headers.get("x-user-id") or user or "token:" + known.digest.hex())
        terms = self._terms(project, hashed)
        asked = headers.get("x-tabloop-opt-out", "") not in ("", "0", "false")
        return Caller(project, hashed, client, asked or not terms.logged, terms.experiments, terms.version)

    def _own(self, name: str, token: bytes, roles: Sequence[Role], clock: Callable[[], float]) -> Known:
        """A token of the settings that has every project."""
        bucket = Bucket(self._settings.requests_per_minute, clock)
        return Known(name, _digest(token), (), frozenset(roles), bucket)

    def _terms(self, project: str, user: str) -> Terms:
        """Of project and user together: either can refuse, neither can consent for the other."""
        settings = self._settings
        shared, own = settings.projects.get(project, settings.terms), settings.users.get(user, UserTerms())
        return Terms(
            logged=shared.logged and own.logged,
            experiments=shared.experiments and own.experiments,
            version=own.version or shared.version,
        )


def client_name(headers: Mapping[str, str], guess: str = "") -> str:
    """Which client it is: from the shape of its request where that tells, else from its User-Agent."""
    agent = headers.get("user-agent", "")
    if "continue" in agent.lower():
        return "continue"
    return guess or UNSAFE.sub("", agent.split("/")[0])[:32] or "unknown"


def _sent(headers: Mapping[str, str]) -> bytes:
    """The token, as a bearer's, as a browser's password, or as Continue's second header."""
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            return credentials.strip().encode()
        case "basic":
            with suppress(ValueError):  # not base64, or not even ASCII
                return base64.b64decode(credentials, validate=True).partition(b":")[2]
    return headers.get("api-key", "").encode()


def _known(name: str, token: AccessToken, clock: Callable[[], float]) -> Known:
    bucket = Bucket(token.requests_per_minute, clock)
    return Known(name, bytes.fromhex(token.sha256), token.projects, frozenset(token.roles), bucket)


def _digest(token: bytes) -> bytes:
    """Tokens are long and random: a plain hash of one cannot be searched for."""
    return hashlib.sha256(token).digest()


def _listed(values: Sequence[str] | frozenset[Role]) -> str:
    return ", ".join(sorted(values))


def _needed(secret: SecretStr | None, name: str) -> bytes:
    if secret is None:
        raise SystemExit(
            f"serving.{name} is not set: `make up` generates one, or set TABLOOP_SERVING__{name.upper()}; there is no open door"
        )
    return secret.get_secret_value().encode()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m serving.access", description="Make a token and its lines of settings.")
    parser.add_argument("name", help="who or what it is for")
    parser.add_argument(
        "--project", action="append", type=_project, default=[], help="project it may name (default: any); may be repeated"
    )
    parser.add_argument("--role", action="append", choices=ROLES, default=[], help="default: complete and feedback")
    options = parser.parse_args(arguments)
    made, name = secrets.token_urlsafe(24), json.dumps(options.name, ensure_ascii=False)
    lines = [f"sha256 = {json.dumps(_digest(made.encode()).hex())}"]
    lines += [f"projects = {json.dumps(options.project, ensure_ascii=False)}"] if options.project else []
    lines += [f"roles = {json.dumps(options.role)}"] if options.role else []
    print(f"# give to {name}, kept nowhere: {made}\n[serving.tokens.{name}]", *lines, sep="\n")
    return 0


def _project(name: str) -> str:
    if not PROJECT.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{name!r}: {PROJECT_IS}")
    return name


if __name__ == "__main__":
    sys.exit(main())
