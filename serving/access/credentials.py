"""Credentials: the user, roles, projects and rate of a token."""

import hashlib
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr, ValidationError

from infra import settings as settings_
from infra.identity import NAME_RULE, user_name
from infra.settings.schema import AccessToken, Role, Serving
from infra.settings.section import Section
from infra.settings.sources import expect_file

Clock = Callable[[], float]
EDITOR: tuple[Role, ...] = ("complete", "feedback")
SIMULATION: tuple[Role, ...] = (*EDITOR, "users", "versions")
ADMINISTRATOR: tuple[Role, ...] = (*EDITOR, "versions", "metrics", "admin")
"""All roles but `users`: an administrator speaks for no other user."""


class Denied(Exception):
    """The request is not allowed; `status` is that of the response."""

    def __init__(self, status: int, message: str, retry_seconds: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_seconds = retry_seconds


class RateLimiter:
    """A token bucket: `per_minute` requests at once, refilled at `per_minute` requests a minute."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self.per_minute = per_minute
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
class Credential:
    """A token that was recognized."""

    name: str
    """Its name in the settings."""
    user: str
    """Id of the user that it stands for."""
    projects: tuple[str, ...]
    """Projects that it may name; empty: all."""
    roles: frozenset[Role]
    limiter: RateLimiter
    """Its rate on this replica."""

    def require(self, role: Role) -> None:
        """Raise Denied with 403 if the token lacks a role."""
        if role not in self.roles:
            has = ", ".join(sorted(self.roles))
            raise Denied(403, f"token {self.name}: this needs the role {role}, the token has {has}")

    def may_name(self, project: str) -> bool:
        """Return whether the token may name a project."""
        return not self.projects or project in self.projects

    def require_project(self, project: str, field: str) -> None:
        """Raise Denied with 403 if the token may not name a project; `field` of the request names it."""
        if not self.may_name(project):
            has = ", ".join(sorted(self.projects))
            raise Denied(403, f"{field}: token {self.name} has {has}, not {project}")

    def admit(self) -> None:
        """Count a request on this replica. Raises Denied with 429 for too many."""
        if seconds := self.limiter.wait():
            raise self.too_many(seconds)

    def too_many(self, seconds: float) -> Denied:
        """Return the refusal of a request that may be repeated after some seconds."""
        return Denied(429, f"token {self.name}: too many requests; wait {seconds:.1f} s", int(seconds) + 1)


class TokenTable(Section):
    """The tokens of a file."""

    tokens: dict[str, AccessToken]


def digest(token: bytes) -> bytes:
    """Return a plain SHA-256: tokens are long and random, so it cannot be inverted by trying."""
    return hashlib.sha256(token).digest()


def read_table(file: Path) -> dict[str, AccessToken]:
    """Return the tokens of a TOML file by name (`serving.token_file`).

    Raises:
        ValueError: the file is missing, is not TOML, or describes a token wrongly; the message names file and field.
    """
    try:
        expect_file(file)
        return TokenTable(tokens=tomllib.loads(file.read_text("utf-8-sig"))).tokens
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: {error}; `tabloop token NAME --table FILE` writes such a file") from None
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        raise ValueError(f"{file}: {'.'.join(map(str, first['loc'][1:]))}: {first['msg']}") from None


def credentials(settings: Serving, clock: Clock = time.monotonic) -> Mapping[bytes, Credential]:
    """Return every token of the settings and of `serving.token_file` by its digest. Raises ValueError if a name or a token
    occurs twice, a token has the role `users` although `serving.name_users` is false, or its user is no name."""
    in_file = read_table(settings_.path(settings.token_file)) if settings.token_file else {}
    if twice := in_file.keys() & settings.tokens.keys():
        raise ValueError(f"serving.tokens and {settings.token_file} both have {', '.join(sorted(twice))}; remove one of each")
    found: dict[bytes, Credential] = {}
    for key, credential in (*_shared(settings, clock), *_personal({**settings.tokens, **in_file}, clock)):
        if key in found:
            raise ValueError(f"{found[key].name} and {credential.name} are the same token; make a new one for each")
        if "users" in credential.roles and not settings.name_users:
            raise ValueError(
                f"token {credential.name} has the role users, and serving.name_users is false: its holder can speak for "
                "every user; set serving.name_users = true if a trusted proxy holds it, else remove the role"
            )
        try:
            if not user_name(credential.user):
                raise ValueError(f"expected {NAME_RULE}, got {credential.user!r}")
        except ValueError as error:
            raise ValueError(f"token {credential.name}: user: {error}") from None
        found[key] = credential
    return found


def _shared(settings: Serving, clock: Clock) -> Iterable[tuple[bytes, Credential]]:
    """Yield the tokens that the settings hold as they are. They may name every project."""
    simulation = settings.simulation_token if settings.name_users else None
    roles_of: tuple[tuple[str, SecretStr | None, tuple[Role, ...]], ...] = (
        ("token", settings.token, EDITOR),
        ("simulation", simulation, SIMULATION),
        ("admin", settings.admin_token, ADMINISTRATOR),
    )
    for name, secret, roles in roles_of:
        if secret is not None:
            key = digest(secret.get_secret_value().encode())
            limiter = RateLimiter(settings.requests_per_minute, clock)
            yield key, Credential(name, f"token:{key.hex()}", (), frozenset(roles), limiter)


def _personal(tokens: Mapping[str, AccessToken], clock: Clock) -> Iterable[tuple[bytes, Credential]]:
    for name, token in tokens.items():
        roles = frozenset(token.roles)
        roles |= frozenset(ADMINISTRATOR) if "admin" in roles else frozenset()
        limiter = RateLimiter(token.requests_per_minute, clock)
        yield bytes.fromhex(token.sha256), Credential(name, token.user or name, token.projects, roles, limiter)
