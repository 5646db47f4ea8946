"""Users by JSON Web Tokens (RFC 7519) of the team's issuer (OpenID Connect Discovery 1.0)."""

import asyncio
import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx
import jwt

from infra.identity import user_name
from infra.settings.schema import OpenIDConnect
from infra.settings.serving import secure_address
from serving.access.credentials import Clock, Credential, Denied, RateLimiter

log = logging.getLogger(__name__)
MAX_CHARACTERS = 8192
"""Characters of a token; issuers' tokens have one to three thousand."""
MAX_USERS = 10_000
"""Users whose rates are remembered."""
TIMEOUT_SECONDS = 5.0
AGENT = "tabloop"
"""Firewalls before issuers refuse the name that Python's own client sends."""
RETRY_SECONDS = 10.0
"""Shortest interval between two reads of the keys, so that tokens with invented key ids cause no further requests."""
LEEWAY_SECONDS = 30.0
"""Seconds by which the issuer's clock may differ from the app's."""
KEY_SECONDS = 300.0
"""Seconds between two reads of the issuer's keys."""
MAX_AGES = 3
"""Keys older than this many times KEY_SECONDS are no longer used."""
REASONS: Sequence[tuple[type[jwt.PyJWTError], str]] = (
    (jwt.ExpiredSignatureError, "expired"),
    (jwt.ImmatureSignatureError, "not valid yet"),
    (jwt.InvalidAudienceError, "wrong audience"),
    (jwt.InvalidIssuerError, "wrong issuer"),
    (jwt.MissingRequiredClaimError, "missing claim"),
    (jwt.InvalidAlgorithmError, "wrong algorithm"),
    (jwt.InvalidSignatureError, "wrong signature"),
)
Keys = Mapping[str, jwt.PyJWK]
"""Public keys by key id; the only key also by "", since a token need not name it (OpenID Connect Core 1.0, section 10.1)."""


class Issuer:
    """Checks the issuer's tokens."""

    def __init__(self, setting: OpenIDConnect, keys: "IssuerKeys", clock: Clock) -> None:
        self._setting = setting
        self._keys = keys
        self._clock = clock
        self._limiters: OrderedDict[str, RateLimiter] = OrderedDict()

    @classmethod
    def of(cls, setting: OpenIDConnect, clock: Clock) -> "Issuer":
        """Return the issuer of the settings; its keys are read at the first token."""
        return cls(setting, IssuerKeys(lambda: read_keys(setting), KEY_SECONDS, clock), clock)

    async def verify(self, token: str) -> Credential:
        """Return the credential of a token's subject.

        Raises:
            Denied: 401 with the kind of the token's fault, 503 if the issuer's keys cannot be read.
        """
        try:
            claims = await self._claims(token)
        except jwt.PyJWTError as error:
            reason = next((reason for kind, reason in REASONS if isinstance(error, kind)), "malformed")
            raise Denied(401, f"token of the issuer: {reason}") from None
        user = claims[self._setting.user_claim]
        if not isinstance(user, str) or not user:
            raise Denied(401, "token of the issuer: missing claim")
        try:
            user_name(user)
        except ValueError as error:
            raise Denied(401, f"token of the issuer: {self._setting.user_claim}: {error}") from None
        # A credential per subject: the issuer has checked each, so no token can invent another user.
        setting = self._setting
        return Credential(f"oidc:{user}", user, setting.projects, frozenset(setting.roles), self._limiter(user))

    async def _claims(self, token: str) -> dict[str, Any]:
        setting = self._setting
        if len(token) > MAX_CHARACTERS:
            raise jwt.DecodeError("too long")
        header = jwt.get_unverified_header(token)
        if header.get("alg") not in setting.algorithms:
            raise jwt.InvalidAlgorithmError("not pinned")
        key = await self._keys.get(header.get("kid", ""))
        if key is None:
            raise Denied(401, "token of the issuer: unknown key")
        return jwt.decode(
            token,
            key,
            algorithms=setting.algorithms,
            audience=setting.audience,
            issuer=setting.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud", setting.user_claim]},
        )

    def _limiter(self, user: str) -> RateLimiter:
        """Return the user's own rate; all of a user's tokens share it."""
        limiter = self._limiters.pop(user, None) or RateLimiter(self._setting.requests_per_minute, self._clock)
        self._limiters[user] = limiter
        if len(self._limiters) > MAX_USERS:
            self._limiters.popitem(last=False)
        return limiter


class IssuerKeys:
    """The issuer's public keys. They are read in a thread, so that no other request waits for the issuer.

    A key is used for `seconds` after it was read. Then the next request starts another read, and is served by the known keys
    meanwhile; keys older than MAX_AGES times that are not used. A token with an unknown key waits for one read.
    """

    def __init__(self, read: Callable[[], Keys], seconds: float, clock: Clock) -> None:
        self._read, self._seconds, self._clock = read, seconds, clock
        self._keys: Keys = {}
        self._read_at = self._tried_at = -math.inf
        self._reading: asyncio.Task[None] | None = None

    async def get(self, key_id: str) -> jwt.PyJWK | None:
        """Return a key; none if the issuer has no such key. Raises Denied with 503 if the keys cannot be read."""
        age = self._clock() - self._read_at
        known = self._keys.get(key_id) if age < MAX_AGES * self._seconds else None
        reading = self._start_reading() if known is None or age >= self._seconds else None
        if known is not None:
            return known
        if reading:
            await asyncio.shield(reading)
        if self._clock() - self._read_at >= MAX_AGES * self._seconds:
            raise Denied(503, "the keys of the token's issuer cannot be read now; try again", int(RETRY_SECONDS))
        return self._keys.get(key_id)

    def _start_reading(self) -> asyncio.Task[None] | None:
        """Return the running read, or a new one; none if the last one began less than RETRY_SECONDS ago."""
        if self._reading and not self._reading.done():
            return self._reading
        if self._clock() - self._tried_at < RETRY_SECONDS:
            return None
        self._tried_at = self._clock()
        self._reading = asyncio.create_task(self._renew())
        return self._reading

    async def _renew(self) -> None:
        try:
            self._keys = await asyncio.to_thread(self._read)
        except (httpx.HTTPError, jwt.PyJWTError, ValueError) as error:
            log.error("the keys of serving.oidc.issuer cannot be read: %s", error)
        else:
            self._read_at = self._clock()


def read_keys(setting: OpenIDConnect) -> Keys:
    """Read the issuer's signing keys over HTTP; blocks.

    Raises:
        httpx.HTTPError: the discovery document cannot be read.
        jwt.PyJWTError: the keys cannot be read.
        ValueError: the discovery document is not the issuer's, or it has several keys without an id.
    """
    url = setting.issuer.rstrip("/") + "/.well-known/openid-configuration"
    document = httpx.get(url, timeout=TIMEOUT_SECONDS).raise_for_status().json()
    if not isinstance(document, dict) or document.get("issuer") != setting.issuer:
        raise ValueError(f"{url}: expected the issuer {setting.issuer!r}, as serving.oidc.issuer says")
    address = secure_address(str(document.get("jwks_uri")))
    client = jwt.PyJWKClient(address, cache_jwk_set=False, timeout=TIMEOUT_SECONDS, headers={"User-Agent": AGENT})
    keys = [key for key in client.get_jwk_set().keys if key.public_key_use in ("sig", None)]
    named = {key.key_id: key for key in keys if key.key_id} | ({"": keys[0]} if len(keys) == 1 else {})
    if not named:
        raise ValueError(f"{address}: {len(keys)} signing keys without a key id, expected one key, or `kid` in each")
    return named
