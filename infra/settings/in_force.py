"""The settings in force: the value of each, its origin, and what must restart when it changes."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from infra import settings as settings_
from infra.settings.schema import Settings
from infra.settings.section import Section
from infra.settings.sources import Keys, gather

Effect = Literal["next run", "serving", "stack"]
"""When a changed setting holds: the flows and the gate read it at their next run; the part `serving` reads it at its start; other
parts too read it at theirs, or have it on their command line."""
EFFECTS: Mapping[str, Effect] = {
    **{"store": "stack", "registry": "stack", "registry.page": "serving", "orchestration": "stack"},
    **{"orchestration.page": "serving", "orchestration.dask_scheduler": "next run", "model": "stack", "serving": "serving"},
    **{"serving.engines": "stack", "serving.engine_host": "stack", "serving.engine_token": "stack"},
    **{
        "serving.adapters": "stack",
        "serving.engine_arguments": "stack",
        "serving.state": "stack",
        "serving.most_deltas": "stack",
    },
    **{"collect": "next run", "collect.join_seconds": "serving", "reward": "next run", "train": "next run"},
    **{"evaluate": "next run", "evaluate.engine": "stack", "evaluate.engine_url": "stack", "evaluate.engine_host": "stack"},
    **{"evaluate.engine_token": "stack", "experiment": "next run", "retention": "next run", "stack": "stack"},
}
"""By section or setting; a setting's own entry comes before its section's."""
MEANING: Mapping[Effect, str] = {
    "next run": "holds from the next run of the flows on, without a restart; an A/B test that runs keeps its plan",
    "serving": "holds after `tabloop restart serving`",
    "stack": "holds after `tabloop restart`",
}
DEFAULT = "default"


@dataclass(frozen=True)
class Setting:
    """A setting in force, with secrets masked."""

    key: str
    value: Any
    """JSON value."""
    default: Any
    """JSON value."""
    origin: str
    """The file or variable that gives the value; GENERATED (sources.py) of a secret of the stack, else DEFAULT."""
    effect: Effect

    @property
    def meaning(self) -> str:
        """What makes a change of it hold."""
        return MEANING[self.effect]


def in_force(file: Path | None = None, environment: Mapping[str, str] = os.environ) -> dict[str, Setting]:
    """Return every setting by its dotted name. Raises SettingsError as `infra.settings.load` does."""
    settings, gathered = settings_.load(file, environment), gather(file, environment)
    values, defaults = flat(json.loads(settings_.dump(settings))), flat(json.loads(settings_.dump(Settings())))
    return {
        key: Setting(key, value, defaults[key], _origin(key, gathered.origins), effect_of(key)) for key, value in values.items()
    }


def flat(dumped: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of dumped settings by dotted name."""
    return dict(_flat(Settings, dumped, ""))


def _flat(section: type[Section], values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            yield from _flat(field.annotation, values.get(name, {}), f"{prefix}{name}.")
        elif name in values:
            yield prefix + name, values[name]


def effect_of(key: str) -> Effect:
    """Return what makes a change of a setting hold."""
    parts = key.split(".")
    return next(EFFECTS[name] for count in range(len(parts), 0, -1) if (name := ".".join(parts[:count])) in EFFECTS)


def description(key: str) -> str:
    """Return what a setting means, in one line. Raises KeyError for an unknown one."""
    section: Any = Settings
    *groups, last = key.split(".")
    for name in groups:
        section = section.model_fields[name].annotation
    return " ".join((section.model_fields[last].description or "").split())


def _origin(key: str, origins: Mapping[Keys, str]) -> str:
    """Return the origins of a setting's value, or of the values in its table."""
    keys = tuple(key.split("."))
    found = [origin for leaf, origin in origins.items() if leaf[: len(keys)] == keys]
    return ", ".join(dict.fromkeys(found)) or DEFAULT
