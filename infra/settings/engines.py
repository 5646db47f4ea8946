"""Settings of the engine slots: engines of tabloop by their addresses, or an external server."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator

from infra.settings.section import Address, RequestSecret, Section, http_address


def _without_credentials(value: str) -> str:
    if "@" in urlsplit(value).netloc:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT without credentials")
    return value


PlainAddress = Annotated[Address, AfterValidator(_without_credentials)]


class External(Section):
    """An engine slot served by an external server."""

    kind: Literal["external"]
    """Marks the slot as external: the stack starts no engine for it."""
    url: str
    """Base URL of its OpenAI-compatible API, including /v1."""
    model: str
    """Model name in requests to it."""
    token: RequestSecret | None = None
    """Bearer token for it; none: no Authorization header."""
    version: str = Field("0", pattern=r"^\d+$")
    """Registry version of the weights it was started with; 0: the base model."""
    swap: Literal["none", "vllm"] = "none"
    """How its weights are exchanged. none: it always serves that version. vllm: by the development endpoints of a vLLM that runs
    tabloop's worker extension and serves this replica of the app alone (infra/docs/operate/engines.md)."""

    @field_validator("url")
    @classmethod
    def _plain_address(cls, value: str) -> str:
        try:
            return _without_credentials(http_address(value))
        except ValueError:
            raise ValueError(
                "expected http://HOST:PORT/v1 or https://... without credentials; put a token into `token`"
            ) from None


def _distinct(urls: tuple[str, ...]) -> tuple[str, ...]:
    if twice := sorted({url for url in urls if urls.count(url) > 1}):
        raise ValueError(f"{twice[0]} occurs twice; name each engine once")
    return urls


def _kind_of_engine(value: object) -> str:
    return "address" if isinstance(value, str) else "group" if isinstance(value, (list, tuple)) else "external"


EngineGroup = Annotated[tuple[PlainAddress, ...], Field(min_length=1), AfterValidator(_distinct)]
EngineSetting = Annotated[
    Annotated[PlainAddress, Tag("address")] | Annotated[EngineGroup, Tag("group")] | Annotated[External, Tag("external")],
    Discriminator(_kind_of_engine),
]


def own_engines(setting: EngineSetting) -> tuple[str, ...]:
    """Return the URLs of a slot's engines of tabloop; none for an external server."""
    return (setting,) if isinstance(setting, str) else setting if isinstance(setting, tuple) else ()
