"""Who asks: the bearer token, the project, and the user as a keyed hash."""

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import SecretStr

from infra.identity import user_hash
from infra.settings.schema import Serving

PROJECT = re.compile(r"[\w.-]{1,64}")
UNSAFE = re.compile(r"[^\w.+-]")


class Denied(Exception):
    """The request may not do that."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Caller:
    """Who sent a request."""

    project: str
    user: str
    """Keyed hash."""
    client: str
    opted_out: bool


class Access:
    """Checks tokens and names callers."""

    def __init__(self, settings: Serving) -> None:
        self._token = _needed(settings.token, "token")
        self._admin = settings.admin_token.get_secret_value().encode() if settings.admin_token else self._token
        self._secret = _needed(settings.user_secret, "user_secret")

    def caller(self, headers: Mapping[str, str], user: str | None, client: str) -> Caller:
        """The sender of a request with a good token.

        Raises:
            Denied: token missing or wrong, or a project that is none.
        """
        token = self._check(headers, self._token, self._admin)
        project = headers.get("x-project-id", "default")
        if not PROJECT.fullmatch(project):
            raise Denied(400, "X-Project-ID: letters, digits, dot, dash and underscore, at most 64 of them")
        identity = headers.get("x-user-id") or user or "token:" + hashlib.sha256(token).hexdigest()
        return Caller(
            project=project,
            user=user_hash(self._secret, identity),
            client=client,
            opted_out=headers.get("x-tabloop-opt-out", "") not in ("", "0", "false"),
        )

    def administrator(self, headers: Mapping[str, str]) -> None:
        """Raises Denied unless the request may administrate."""
        self._check(headers, self._admin)

    def _check(self, headers: Mapping[str, str], *good: bytes) -> bytes:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        token = (bearer.strip() if scheme.lower() == "bearer" else headers.get("api-key", "")).encode()
        if not token:
            raise Denied(401, "missing token: send `Authorization: Bearer TOKEN` (in Continue: apiKey)")
        if not any([hmac.compare_digest(token, known) for known in good]):
            known_to_the_other = hmac.compare_digest(token, self._token)
            raise Denied(403, "this token is not an administrator's") if known_to_the_other else Denied(401, "wrong token")
        return token


def client_name(headers: Mapping[str, str], guess: str = "") -> str:
    """Which client it is: from the shape of its request where that tells, else from its User-Agent."""
    agent = headers.get("user-agent", "")
    if "continue" in agent.lower():
        return "continue"
    return guess or UNSAFE.sub("", agent.split("/")[0])[:32] or "unknown"


def _needed(secret: SecretStr | None, name: str) -> bytes:
    if secret is None:
        raise SystemExit(
            f"serving.{name} is not set: `make up` generates one, or set TABLOOP_SERVING__{name.upper()}; there is no open door"
        )
    return secret.get_secret_value().encode()
