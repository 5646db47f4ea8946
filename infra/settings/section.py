"""The base class of every group of settings, and a type of secrets."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from infra.settings.release import ROOT


def _bare(value: SecretStr) -> SecretStr:
    return SecretStr(value.get_secret_value().strip())


RequestSecret = Annotated[SecretStr, AfterValidator(_bare)]
"""A secret that requests carry as it is, in a header or as their address: the line end of a file is no part of it."""


def http_address(value: str) -> str:
    """Return the URL of a server without a slash at its end. Raises ValueError, without the URL: it may hold a password."""
    try:
        address = urlsplit(value)
        usable = address.scheme in ("http", "https") and address.hostname and address.port != 0
    except ValueError:  # a port above 65535, or half a bracket
        usable = False
    if not usable:
        raise ValueError("expected http://HOST:PORT or https://HOST:PORT, with a port from 1 to 65535 or none")
    return value.rstrip("/")


Address = Annotated[str, AfterValidator(http_address)]
"""The URL of a server."""


def _directory(value: Path) -> Path:
    if (ROOT / value).resolve() == ROOT:
        raise ValueError(f"expected a directory of its own; this is {ROOT}, where relative paths start")
    return value


Directory = Annotated[Path, AfterValidator(_directory)]
"""A directory that tabloop makes, fills, and closes to others; relative paths start at the repository."""
Port = Annotated[int, Field(ge=1, le=65_535)]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys, and true, infinity and NaN where a number is expected."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flag_as_number(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, bool):
            kind = cls.model_fields[info.field_name or ""].annotation
            if {int, float} & {kind, *get_args(kind)}:
                raise ValueError(f"expected a number, got {str(value).lower()}")
        return value

    @classmethod
    def of_stored(cls, values: Mapping[str, Any]) -> Self:
        """Return a group from stored values; keys that only an earlier version had are ignored."""
        return cls.model_validate(_known(cls, values))


def _known(section: type[Section], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a group's own fields, and of its groups' fields."""
    found: dict[str, Any] = {}
    for name in values.keys() & section.model_fields.keys():
        kind = section.model_fields[name].annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            found[name] = _known(kind, values[name])
        else:
            found[name] = values[name]
    return found
