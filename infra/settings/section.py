"""The base class of every group of settings, and a type of secrets."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr


def _bare(value: SecretStr) -> SecretStr:
    return SecretStr(value.get_secret_value().strip())


RequestSecret = Annotated[SecretStr, AfterValidator(_bare)]
"""A secret that requests carry as it is, in a header or as their address: the line end of a file is no part of it."""


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

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
