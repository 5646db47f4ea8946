"""Checks the token of a request and names its sender."""

import re
import time
import unicodedata
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers

from infra.http.login import Logins, password_of
from infra.identity import header_text, keyed_hash, user_hash, user_name
from infra.records import ShowLevel
from infra.settings import revealed
from infra.settings.schema import Role, Serving
from serving.access.credentials import Clock, Credential, Denied, digest
from serving.access.known_tokens import KnownTokens
from serving.access.oidc import Issuer
from serving.access.shared_rates import SharedRates

PROJECT = re.compile(r"[\w.-]{1,64}")
WRONG_TOKEN = "wrong token: this server has no such token; an administrator makes one by `tabloop invite NAME`"
PROJECT_RULE = "1 to 64 letters, digits, dots, dashes and underscores"


@dataclass(frozen=True)
class Named:
    """The user and the project that a request names."""

    user: str | None
    """Keyed hash of the user's id; None: the token may name users, and the request names none."""
    project: str | None
    """None: the request names none."""
    own: str
    """Keyed hash of the token's own user."""
    credential: str
    """Keyed hash of the token's name."""


@dataclass(frozen=True)
class Caller:
    """The sender of a request."""

    project: str
    user: str
    """Keyed hash of the user's id."""
    credential: str
    """Keyed hash of the token's name."""
    client: str
    """The client's name (gateway/dialects)."""
    opted_out: bool
    """Whether its events are recorded without text."""
    experiments: bool = True
    """Whether it takes part in A/B tests."""
    version: str = ""
    """Version that the settings pin it to; empty if none."""
    level: ShowLevel | None = None
    """Level at which it is shown completions, from its settings; None: the app's level."""
    sees_versions: bool = False
    """Whether responses name the version and the arm's sampling."""
    names_user: bool = False
    """Whether the user is another than the token's own."""
    names_project: bool = False
    """Whether the request names its project."""


class Access:
    """Checks tokens and names callers."""

    def __init__(
        self,
        settings: Serving,
        on_ignored_user: Callable[[], None] = lambda: None,
        on_unshared_rate: Callable[[], None] = lambda: None,
        clock: Clock = time.monotonic,
        chose: Callable[[str, str], bool] = lambda user, project: False,
    ) -> None:
        """Read the tokens.

        `on_ignored_user` is called for each request that names another user without the role `users`, `on_unshared_rate` for
        each request that this replica counts alone, since Valkey does not answer. `chose` returns whether a user, by keyed hash,
        is recorded without text in a project by their own choice, or since one of both was forgotten (recording/choices.py).

        Raises:
            SystemExit: `user_secret` is missing, there is no token at all, or a token is described wrongly.
        """
        if settings.user_secret is None:
            raise SystemExit(_unset("user_secret"))
        self.user_secret = settings.user_secret.get_secret_value().encode()
        """Key of the keyed hash of users."""
        self._settings = settings
        self._on_ignored_user = on_ignored_user
        self._chose = chose
        self._issuer = Issuer.of(settings.oidc, clock) if settings.oidc else None
        try:
            self.tokens = KnownTokens(settings, clock)
        except ValueError as error:
            raise SystemExit(f"serving: {error}") from None
        if not self.tokens and not self._issuer:
            raise SystemExit(_unset("token"))
        valkey, admin_token = revealed(settings.valkey), revealed(settings.admin_token)
        self._shared_rates = SharedRates.connect(valkey, on_unshared_rate, clock) if valkey else None
        self._admin_token = admin_token.encode()
        self.logins = Logins(admin_token) if admin_token else None
        """Login links of the status page; none without an administrator's token."""

    async def check(self, headers: Mapping[str, str], role: Role, *, password: bool = False) -> Credential:
        """Return the credential of a request, if it has this role.

        With `password`, a browser may send the token, or the password of a session (infra/http/login.py), as the password of
        basic authentication. Only for routes that change nothing: a browser also adds that password to requests that another
        site's page makes.

        Raises:
            Denied: 401 for a missing or wrong token, 403 for a token without the role, 429 for too many requests, 503 if the
                issuer's keys cannot be read.
        """
        token = _token(headers)
        if not token and password:
            token = self._password(headers)
        if not token:
            raise Denied(401, "missing token: send `Authorization: Bearer TOKEN` (in Continue: apiKey)")
        # The duration of a look-up by digest reveals nothing: nobody can choose the digest of a guess.
        credential = self.tokens.get(digest(token))
        if credential is None and self._issuer and token.count(b".") == 2:
            credential = await self._issuer.verify(token.decode("latin-1"))
        if credential is None:
            raise Denied(401, WRONG_TOKEN)
        credential.require(role)
        credential.admit()  # first, since it refuses a flood without a round trip
        if self._shared_rates:
            seconds = await self._shared_rates.wait(self._hashed_name(credential), credential.limiter.per_minute)
            if seconds:
                raise credential.too_many(seconds)
        return credential

    @property
    def projects(self) -> Collection[str]:
        """The projects with terms of their own (serving.projects)."""
        return self._settings.projects.keys()

    @property
    def problems(self) -> dict[str, str]:
        """Current problems by part."""
        found = {"tokens": self.tokens.problem, "valkey": self._shared_rates.problem if self._shared_rates else ""}
        return {part: problem for part, problem in found.items() if problem}

    async def aclose(self) -> None:
        """Close the connections to Valkey."""
        if self._shared_rates:
            await self._shared_rates.aclose()

    def _hashed_name(self, credential: Credential) -> str:
        """Return the keyed hash of a token's name. A token that replaces another keeps its name, and so its history."""
        return keyed_hash(self.user_secret, f"credential:{credential.name}")

    def token_of(self, headers: Mapping[str, str]) -> str:
        """Return the token of a request that `check` has admitted; empty where a session's password stands for it."""
        given = password_of(headers.get("authorization", "").encode())
        return _token(headers).decode() or ("" if self.logins and self.logins.admits(given) else given)

    def _password(self, headers: Mapping[str, str]) -> bytes:
        """Return the token that a browser sends as its password; of an administrator's session, the administrator's."""
        given = password_of(headers.get("authorization", "").encode())
        return self._admin_token if self.logins and self.logins.admits(given) else given.encode()

    def caller(
        self,
        headers: Mapping[str, str],
        credential: Credential,
        user: object,
        client: str,
        complete: Callable[[Named], Named] = lambda named: named,
    ) -> Caller:
        """Return the sender of a request.

        The user is the credential's own. Only a credential with the role `users` names others.

        Args:
            user: the body's, of any JSON type, used if there is no X-User-ID.
            complete: returns what the request names, with what is known of it otherwise; may raise Denied.

        Raises:
            Denied: 400 for an invalid name of a user or project, 403 for a project that is not the token's.
        """
        named = complete(self._named(headers, credential, user))
        project = named.project or (credential.projects[0] if credential.projects else "default")
        credential.require_project(project, "X-Project-ID")
        hashed = named.user or named.own
        terms = self._settings.terms_of(project, hashed)
        opts_out = any(text.lower() not in ("", "0", "false", "no", "off") for text in _texts(headers, "x-tabloop-opt-out"))
        return Caller(
            project,
            hashed,
            named.credential,
            client,
            opted_out=opts_out or not terms.logged or self._chose(hashed, project),
            experiments=terms.experiments,
            version=terms.version,
            level=terms.level,
            sees_versions="versions" in credential.roles,
            names_user=hashed != named.own,
            names_project=named.project is not None,
        )

    def _named(self, headers: Mapping[str, str], credential: Credential, user: object) -> Named:
        own = user_hash(self.user_secret, credential.user)
        header = header_text(headers.get("x-user-id", ""))
        if "users" in credential.roles:
            name = _name(_only(headers, "X-User-ID"), "X-User-ID") or _name(user, "user")
            hashed = keyed_hash(self.user_secret, name) if name else None
        else:
            hashed = own
            if not _is_name_of(header, credential) or (not header and not _is_name_of(user, credential)):
                self._on_ignored_user()
        return Named(hashed, _project(headers), own, self._hashed_name(credential))

    def file_hash(self, project: str, path: str) -> str:
        """Return the keyed hash of a file's path within a project; empty without a path."""
        return keyed_hash(self.user_secret, f"file\0{project}\0{path}") if path else ""


def _project(headers: Mapping[str, str]) -> str | None:
    """Return the project that a request names; None without one. Raises Denied with 400."""
    project = unicodedata.normalize("NFC", _only(headers, "X-Project-ID"))
    if project and not PROJECT.fullmatch(project):
        raise Denied(
            400, f"X-Project-ID: expected {PROJECT_RULE}, got {project[:40]!r}; set it where the editor sets its headers"
        )
    return project or None


def _only(headers: Mapping[str, str], field: str) -> str:
    """Return the text of a header; empty without it. Raises Denied with 400 for several that differ."""
    texts = dict.fromkeys(_texts(headers, field.lower()))
    if len(texts) > 1:
        got = " and ".join(repr(text[:40]) for text in list(texts)[:2])
        raise Denied(400, f"{field}: expected one, got {got}; a proxy that names it must overwrite the header of its clients")
    return next(iter(texts), "")


def _texts(headers: Mapping[str, str], name: str) -> list[str]:
    values = headers.getlist(name) if isinstance(headers, Headers) else [headers[name]] if name in headers else []
    return [header_text(value).strip() for value in values]


def _name(given: object, field: str) -> str:
    """Return the one form of the user's name in a header or a body; empty without one. Raises Denied with 400."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise Denied(400, f"{field}: expected a string, got {str(given)[:40]}; send the user's id as text, or leave it out")
    try:
        return user_name(given)
    except ValueError as error:
        raise Denied(400, f"{field}: {error}; send the user's id, percent-encoded if it is not ASCII") from None


def _is_name_of(given: object, credential: Credential) -> bool:
    """Return whether a name is the token's own user, or none at all."""
    if not isinstance(given, str):
        return True
    try:
        return user_name(given) in ("", user_name(credential.user))
    except ValueError:
        return False


def _token(headers: Mapping[str, str]) -> bytes:
    """Return the bearer token, or where there is none the token in the header `api-key`, which Azure's clients send."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return ((value.strip() if scheme.lower() == "bearer" else "") or headers.get("api-key", "")).encode()


def _unset(name: str) -> str:
    return f"serving.{name} is not set: `tabloop up` generates it, or set TABLOOP_SERVING__{name.upper()}"
