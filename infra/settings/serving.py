"""Settings of the serving app: sampling, access, terms of participation, engine slots, spool."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from infra.records import ShowLevel
from infra.settings.engines import EngineSetting, External, own_engines
from infra.settings.section import Directory, Port, RequestSecret, Section


class Sampling(Section):
    temperature: float = Field(1.0, gt=0, le=2)
    """Temperature of completions: the one at which most are accepted. The client's own is ignored."""
    exploring_share: float = Field(0.0, ge=0, le=0.1)
    """Share of requests sampled at temperature 0.8 instead, so that training sees what the policy would rarely write. They
    are recorded as exploring, and no experiment counts them. Acceptance falls with the share. 0: none explores."""
    max_tokens: int = Field(32, ge=1)
    """Maximum tokens of a completion; a client may ask for fewer."""
    withhold_below: float = Field(0.0, ge=0, lt=1)
    """Withhold a completion of a version without an estimate (serving.showing) if its probability under the model falls below
    this: it is recorded but not shown. 0: show all. Above 0, nothing is streamed before the last token is sampled."""


class Showing(Section):
    """The decision to show (infra/model/showing.py), for versions that have a keep estimate; completions of others are
    shown whole."""

    level: ShowLevel = "eager"
    """Level of requests for which neither their header, their user nor their project names one. A level is a price of an
    interruption; what is expected to be kept of a completion, less the price, decides whether and how much of it is shown. all:
    everything is shown."""
    eager: float = Field(0.1, ge=0)
    """Price of an interruption at this level, in kept characters."""
    balanced: float = Field(0.4, ge=0)
    """Price of an interruption at this level, in kept characters."""
    quiet: float = Field(0.6, ge=0)
    """Price of an interruption at this level, in kept characters."""
    audit_share: float = Field(0.02, ge=0, le=0.1)
    """Share of requests whose completion is shown whole, whatever the estimate says, so that it stays calibrated where clients
    send only feedback. 0: no request; the settled text at suppressed completions is then the only check."""

    def price(self, level: ShowLevel) -> float | None:
        """Return the price of an interruption at a level, in kept characters; none where all is shown."""
        return {"all": None, "eager": self.eager, "balanced": self.balanced, "quiet": self.quiet}[level]


Role = Literal["complete", "feedback", "users", "versions", "metrics", "admin"]
HostName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]+$")]
ProjectName = Annotated[str, Field(pattern=r"^[\w.-]{1,64}$")]


class AccessToken(Section):
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the token, in hex; `tabloop token NAME` prints a new token and its settings."""
    projects: tuple[ProjectName, ...] = ()
    """Projects the token may name; the first is the default of requests that name none. Empty: any project."""
    user: str = Field("", max_length=200)
    """Id of the user the token stands for, so that several tokens can be one user's; empty: the token's name."""
    roles: tuple[Role, ...] = ("complete", "feedback")
    """What the token allows: complete (request completions), feedback (send feedback), users (name users by X-User-ID; needs
    serving.name_users), versions (see and pin the version that serves), metrics (read /metrics), admin (read the status page and
    /admin; includes versions and metrics)."""
    requests_per_minute: int = Field(600, ge=1)
    """Requests per minute, spread evenly over the minute; each replica of the app counts separately without serving.valkey."""


def secure_address(value: str) -> str:
    """Return an address that nobody on the way can change: https, or http on this machine. Raises ValueError."""
    address = urlsplit(value)
    on_this_machine = address.scheme == "http" and address.hostname in ("localhost", "127.0.0.1", "::1")
    if not (address.scheme == "https" and address.hostname) and not on_this_machine:
        raise ValueError(f"{value[:200]!r}: expected an address that begins with https://")
    return value


VALKEY = re.compile(r"(?:valkey|redis)s?://(?:[^\s/?#@]*@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})(?:/\d{1,5})?")


def valkey_address(value: SecretStr) -> SecretStr:
    """Return the address of a Valkey or Redis server. Raises ValueError, without the address: it may hold a password."""
    address = VALKEY.fullmatch(value.get_secret_value())
    if not address or not 0 < int(address[1]) < 1 << 16:
        raise ValueError(
            "expected valkey://HOST:PORT, or valkey://:PASSWORD@HOST:PORT/DB (valkeys:// for TLS), with @, / and such characters "
            "of the password percent-encoded"
        )
    return value


class OpenIDConnect(Section):
    issuer: Annotated[str, AfterValidator(secure_address)]
    """Issuer of the tokens, exactly as in their claim `iss`. Its keys are found by ISSUER/.well-known/openid-configuration."""
    audience: str = Field(min_length=1)
    """Required value of the claim `aud`, so that a token made for another service is refused."""
    algorithms: tuple[Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"], ...] = (
        "RS256",
        "ES256",
    )
    """Accepted signature algorithms. Symmetric ones cannot be named: a server that checks such a token could also make it."""
    user_claim: str = Field("sub", min_length=1)
    """Claim that is the user's id. A claim that users can change themselves lets one user speak for another."""
    projects: tuple[ProjectName, ...] = ()
    """Projects the users may name; the first is the default of requests that name none. Empty: any project."""
    roles: tuple[Literal["complete", "feedback", "versions"], ...] = ("complete", "feedback")
    """What the tokens allow."""
    requests_per_minute: int = Field(600, ge=1)
    """Requests per minute of each user, spread evenly over the minute; each replica of the app counts separately without
    serving.valkey."""


class Terms(Section):
    logged: bool = True
    """Whether completions and feedback are recorded; false has the effect of X-Tabloop-Opt-Out on every request."""
    experiments: bool = False
    """Whether to take part in A/B tests; false: the champion serves."""
    version: str = ""
    """Policy version to serve if a slot holds it, else the champion serves; no experiment counts these completions. Empty: the
    version follows the registry."""
    level: ShowLevel | None = None
    """Level at which completions are shown; a user's overrides the project's. None: serving.showing.level."""


class ProjectTerms(Terms):
    own_champion: bool = False
    """Whether the project has a loop of its own: its people alone train and judge its versions, and it begins from the common
    champion, which serves it until then; the common loop does not read its events. Needs `serving.adapters`."""


class UserTerms(Terms):
    experiments: bool = True
    """Whether the user takes part in A/B tests if the project does; false: the champion serves."""


class PersonalData(Section):
    kinds: tuple[Literal["email", "phone", "iban", "names"], ...] = ()
    """Personal data that is removed from recorded code as secrets are: e-mail addresses, valid telephone numbers, valid bank
    account numbers, the names below. Empty: none, since code rarely has any and each removal costs a training sample."""
    region: str = Field("", pattern=r"^([A-Z]{2})?$")
    """Country (ISO 3166, "DE") of telephone numbers without a country code. Empty: only numbers with one are found."""
    names: tuple[str, ...] = ()
    """Names of people, in any case."""


class Limits(Section):
    """Limits of the connections to both ports of one replica. Requests on them are limited by token (requests_per_minute), their
    times by infra/http/connections.py."""

    connections: int = Field(16_384, ge=1)
    """Open connections. One more closes the connection that has waited longest for its client, or is closed itself if each has a
    request in progress. The process raises its limit of open files to 512 more than this; where it may not, it logs a warning and
    takes as many connections as that limit allows."""
    connections_per_peer: int = Field(1_024, ge=0)
    """Open connections of one address (of IPv6: of one /64 network); one more closes another of the same address, as above. 0: no
    limit, for an app behind a balancer, which is the only peer and has limits of its own."""


LEAST_ADAPTERS = 4
"""Least serving.adapters above 0."""
ADAPTERS_OF_PROJECT = 2
"""Further adapters for a project with a champion of its own: its champion, and the version that is compared with it."""
MAX_LORA_RANK = 16
"""vLLM's own max_lora_rank, where serving.engine_arguments has none."""
OWN_NAME = re.compile(r"(?!reason$)[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
"""Names of such projects: their aliases in MLflow, cycles and Jobs of Kubernetes are named after them. `verdict.reason` is a tag
of the common loop."""
SHIP_SECONDS = 5.0
"""Seconds at the end of drain.grace_seconds for shipping the spool. When they begin, requests that still run are cut, and
recorded as disconnected. What is not shipped stays on the disk."""


class Drain(Section):
    """How the app ends on SIGTERM: GET /ready returns 503, then no request is taken, streams end, and the spool is shipped."""

    notice_seconds: float = Field(0.0, ge=0)
    """Seconds from SIGTERM in which requests are still taken while GET /ready returns 503, so that a balancer goes elsewhere:
    more than its interval of checks times the failures that it waits for. 0: none is taken."""
    grace_seconds: float = Field(20.0, gt=0)
    """Seconds from SIGTERM until the process has ended, at the latest. A supervisor that kills must wait longer (Kubernetes'
    terminationGracePeriodSeconds). The last 5 s are for shipping the spool."""

    @property
    def stream_seconds(self) -> float:
        """Seconds for running requests after the notice."""
        return self.grace_seconds - self.notice_seconds - SHIP_SECONDS

    @model_validator(mode="after")
    def _leaves_time_for_streams(self) -> Self:
        if self.stream_seconds <= 0:
            raise ValueError(
                f"grace_seconds = {self.grace_seconds:g}: expected more than notice_seconds + {SHIP_SECONDS:g} for shipping the "
                f"spool = {self.notice_seconds + SHIP_SECONDS:g}; the rest is what running requests have to end"
            )
        return self


class Serving(Section):
    host: str = "127.0.0.1"
    """Address to listen on; "::": every address of this machine, of IPv4 and IPv6, and "0.0.0.0" those of IPv4."""
    port: Port = 8081
    """TCP port for completions."""
    feedback_port: Port = 8082
    """TCP port for feedback."""
    hosts: tuple[HostName, ...] = ()
    """Names by which clients reach the app, without ports, beside localhost, 127.0.0.1, [::1], serving.host, this machine's name
    and the address that a connection reached. Requests for other hosts get 403: a web page whose name an attacker points at the
    app would otherwise count as the app's own."""
    token: RequestSecret | None = None
    """Bearer token of the editors; all who use it are one user. None: the stack generates one and keeps it in its state
    directory."""
    admin_token: RequestSecret | None = None
    """Bearer token of the administrators, and the status page's password; none: only tokens with the role admin open these, and
    without one nobody does. Generated like serving.token."""
    simulation_token: RequestSecret | None = None
    """Token of simulated developers (`tabloop demo`, `tabloop bench`): names users by X-User-ID and sees versions. Valid only
    with serving.name_users. Generated like serving.token."""
    name_users: bool = False
    """Whether tokens may have the role users, whose holder can speak for every user. False: such a token stops the start. True
    for a trusted proxy that names the users it has checked, and for the local stack's simulated developers."""
    user_secret: SecretStr | None = None
    """Key of the keyed hash that replaces user ids in records; none: generated like serving.token."""
    engine_token: RequestSecret | None = None
    """Bearer token between the app and tabloop's own engines, for completions and for exchanging weights; no client holds it.
    None: an engine does not start; generated like serving.token."""
    tokens: dict[str, AccessToken] = Field(default={})
    """Further tokens by name, each with its own user, projects, roles and rate. The three tokens above may name every project."""
    token_file: Path | None = None
    """TOML file with further tokens, a table per name as in serving.tokens; `tabloop token NAME --table FILE` writes
    it. Read at the start, and again within two seconds of each change. None or empty: no file."""
    oidc: OpenIDConnect | None = None
    """The team's OpenID Connect issuer, whose tokens stand for their subjects; none: such tokens are refused."""
    requests_per_minute: int = Field(60_000, ge=1)
    """Requests per minute of each of the three tokens above; a whole team sends about a hundredth of this. Each replica of the
    app counts separately without serving.valkey."""
    valkey: Annotated[SecretStr, AfterValidator(valkey_address)] | None = None
    """Valkey or Redis server in which all replicas of the app count a token's or user's requests together:
    "valkey://[[USER]:PASSWORD@]HOST:PORT[/DB]", "valkeys://..." for TLS; redis:// and rediss:// are accepted too. It learns keyed
    hashes of names, no token and no user id. All replicas need the same serving.user_secret. None: each replica counts by itself,
    as it does while the server does not answer."""
    terms: Terms = Terms()
    """Terms of projects without an entry in serving.projects."""
    projects: dict[ProjectName, ProjectTerms] = Field(default={})
    """Terms by project. An entry replaces serving.terms completely."""
    users: dict[str, UserTerms] = Field(default={})
    """Terms by user, named by keyed hash (`tabloop hash NAME` prints it). A user is logged and takes part in A/B
    tests only if the project is and does; a version here overrides the project's."""
    sampling: Sampling = Sampling()
    """How completions are sampled."""
    challenger_sampling: Sampling | None = None
    """Sampling on the challenger's arm, so that an A/B test compares weights and sampling together; none: as serving.sampling.
    Name the same exploring_share as in serving.sampling; left out it is 0, as there."""
    showing: Showing = Showing()
    """Whether, and how much of, a completion is shown."""
    engines: tuple[EngineSetting, EngineSetting] = ("http://127.0.0.1:18100", "http://127.0.0.1:18101")
    """The two engine slots: the URL of an engine of tabloop, a list of URLs of engines that share the slot's completions, or a
    table that describes an external server. A name with several IP addresses in such a list is an engine for each."""
    adapters: int = Field(0, ge=0, le=64)
    """Versions that one engine of tabloop holds at once, as adapters of `model.base` (train.adapter_rank), at least 4. Both slots
    may then name the same engine, which serves champion and challenger in one batch. 0: an engine holds one version, with whole
    weights. On a CPU adapters take four times the time of whole weights (infra/docs/measurements.md)."""
    engine_host: str = ""
    """Address on which tabloop's engines listen, at the ports of their URLs; empty: the URL's own host. Where that is the name of
    a service or a proxy, an address of the engine's machine, or "::" (serving.host)."""
    engine_arguments: dict[str, Any] = Field(default={})
    """Arguments passed to vLLM's engines verbatim (names as in vLLM's AsyncEngineArgs), but for dtype = "fastest": bfloat16 on
    GPUs and on CPUs that compute it faster, float32 elsewhere (`train.precision`)."""
    personal_data: PersonalData = PersonalData()
    """Personal data that is removed from code before it is recorded; secrets always are."""
    spool: Directory = Path("var/spool")
    """Directory of events that are not shipped yet."""
    ship_seconds: float = Field(5.0, gt=0)
    """Seconds until an open spool segment is closed and shipped to the object store."""
    follow_seconds: float = Field(2.0, gt=0)
    """Seconds between two reads of the registry's aliases."""
    state: Directory = Path("var/serving")
    """Directory of downloaded versions and the last known assignment of versions to slots."""
    log_format: Literal["text", "json"] = "text"
    """Lines of the app's log: text for people, or a JSON object a line with the ids of the request and of its trace."""
    most_deltas: int = Field(4, ge=0)
    """Most deltas, from a version on the disk, that replace the full copy of a version: each holds what changed from the version
    that it was trained from. 0: full copies only, and a cycle writes no delta."""
    limits: Limits = Limits()
    """Limits of connections."""
    drain: Drain = Drain()
    """How the app ends."""

    @model_validator(mode="after")
    def _both_arms_explore_as_often(self) -> Self:
        if self.challenger_sampling and self.challenger_sampling.exploring_share != self.sampling.exploring_share:
            raise ValueError(
                f"challenger_sampling.exploring_share = {self.challenger_sampling.exploring_share:g}, expected "
                f"{self.sampling.exploring_share:g} as sampling.exploring_share is: no experiment counts what explores, so a "
                "user would have fewer requests on one arm, and every A/B test would end as broken"
            )
        return self

    @model_validator(mode="after")
    def _ports_and_slots_are_apart(self) -> Self:
        if self.port == self.feedback_port:
            raise ValueError(f"feedback_port = {self.feedback_port}, expected another port than serving.port")
        first, second = (set(own_engines(engine)) for engine in self.engines)
        if 0 < self.adapters < LEAST_ADAPTERS:
            raise ValueError(
                f"adapters = {self.adapters}, expected 0 or at least {LEAST_ADAPTERS}: the versions of two slots, one that is "
                "loaded, and one to go back to"
            )
        if not self.adapters and (shared := sorted(first & second)):
            raise ValueError(f"engines: both slots name {shared[0]}; name two engines, or set serving.adapters")
        return self

    @property
    def completions_url(self) -> str:
        """Address of the completions port, as this machine reaches it."""
        return self._url(self.port)

    @property
    def feedback_url(self) -> str:
        """Address of the feedback port, as this machine reaches it."""
        return self._url(self.feedback_port)

    def _url(self, port: int) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # who listens on all is reached by loopback
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def terms_of(self, project: str, user: str) -> Terms:
        """Return the combined terms of a project and a user, by keyed hash: both must consent."""
        of_project, of_user = self.projects.get(project, self.terms), self.users.get(user, UserTerms())
        return Terms(
            logged=of_project.logged and of_user.logged,
            experiments=of_project.experiments and of_user.experiments,
            version=of_user.version or of_project.version,
            level=of_user.level or of_project.level,
        )

    @property
    def own_champions(self) -> frozenset[str]:
        """Projects with a champion of their own."""
        return frozenset(name for name, terms in self.projects.items() if terms.own_champion)

    @model_validator(mode="after")
    def _own_champions_are_adapters(self) -> Self:
        own = sorted(self.own_champions)
        if wrong := [name for name in own if not OWN_NAME.fullmatch(name)]:
            raise ValueError(
                f"projects.{wrong[0]}.own_champion = true: expected a name of 1 to 20 lower-case letters, digits and inner "
                "dashes, and not reason, since aliases, tags and cycles are named after the project; rename the project, or "
                "remove own_champion"
            )
        least = LEAST_ADAPTERS + ADAPTERS_OF_PROJECT * len(own)
        if own and self.adapters < least:
            raise ValueError(
                f"adapters = {self.adapters}, expected at least {least} with own_champion = true for {', '.join(own)}: "
                f"{LEAST_ADAPTERS}, and {ADAPTERS_OF_PROJECT} for each of these projects; set adapters = {least}, or remove "
                "own_champion"
            )
        if own and (external := [slot for slot, engine in enumerate(self.engines) if isinstance(engine, External)]):
            raise ValueError(
                f"engines: slot {external[0]} is an external server, expected engines of tabloop with own_champion = true for "
                f"{', '.join(own)}: a server with one version cannot serve several loops; name an engine, or remove own_champion"
            )
        return self

    @field_validator("token_file", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return value or None
