"""What the stack was started with: it is remembered in its state directory, and a later `tabloop up` is compared with it."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra import settings as settings_
from infra.settings import Settings
from infra.settings.in_force import Effect, effect_of, flat
from infra.settings.schema import Stack
from infra.settings.sources import (
    ELSEWHERE_NAME,
    REMEMBERED_NAME,
    STATE_VARIABLE,
    StartedWith,
    elsewhere,
    remembered,
    written_by_up,
)
from infra.stack import files

SETTINGS_NAME = "settings.json"
"""The resolved settings with which the parts were started."""


class OtherSettings(RuntimeError):
    """The stack runs with other settings; the message says what differs and what to do."""


@dataclass(frozen=True)
class Change:
    """A setting that differs from the one that the running parts were started with."""

    key: str
    before: Any
    after: Any
    effect: Effect

    def __str__(self) -> str:
        return f"{self.key}: {_short(self.before)} -> {_short(self.after)}"


def changes(state: Path, settings: Settings) -> list[Change]:
    """Return how settings differ from those with which the parts of a state directory were started; none before a start. Raises
    SettingsError."""
    before = written_by_up(state / SETTINGS_NAME, flat) or {}
    after = flat(json.loads(settings_.dump(settings)))
    return [
        Change(key, before.get(key), value, effect_of(key))
        for key, value in after.items()
        if key in before and before[key] != value
    ]


def check(state: Path, settings: Settings, restarted: Effect | None = None) -> list[str]:
    """Return lines that say which changed settings hold from the flows' next run on.

    Args:
        restarted: the effect of the part that is restarted now.

    Raises:
        OtherSettings: a change needs another restart, since the running parts would keep the old value.
    """
    found = changes(state, settings)
    if kept := [change for change in found if change.effect not in ("next run", restarted)]:
        serving = all(change.effect == "serving" for change in kept)
        before = remembered(state)
        raise OtherSettings(
            f"the stack runs with other settings{f', those of {before.file}' if before else ''}:\n"
            + "".join(f"  {change} (restart: {change.effect})\n" for change in kept)
            + "  next: `tabloop restart"
            + (" serving`" if serving else "`")
            + " with these settings, or give those that it runs with"
        )
    return [f"{change}, from the next run of the flows on" for change in found if change.effect == "next run"]


@contextmanager
def remember(state: Path, started: StartedWith) -> Iterator[None]:
    """Remember what a stack is started with; where the block fails, what was remembered before stays."""
    file, pointer = state / REMEMBERED_NAME, default_state() / ELSEWHERE_NAME
    before, pointed = file.read_text() if file.exists() else None, pointer.exists()
    value = {"file": str(started.file.resolve()), "variables": dict(started.variables)}
    files.write(file, json.dumps(value, indent=2) + "\n")
    if state != default_state() and STATE_VARIABLE not in os.environ:
        files.write(pointer, json.dumps({"state": str(state)}) + "\n")
    try:
        yield
    except BaseException:
        if before is None:
            file.unlink(missing_ok=True)
        else:
            files.write(file, before)
        if not pointed:
            pointer.unlink(missing_ok=True)
        raise


def note(state: Path, settings: Settings) -> None:
    """Note the resolved settings of the running parts, once no change waits for a restart."""
    files.write(state / SETTINGS_NAME, settings_.dump(settings))


def stopped(state: Path) -> None:
    """Let commands mean the stack of the default state directory again, once one elsewhere is stopped."""
    if elsewhere(default_state()) == state:
        (default_state() / ELSEWHERE_NAME).unlink()


def default_state() -> Path:
    """Return the state directory of a stack whose settings name no other."""
    return settings_.path(Stack().state)


def others(state: Path) -> Iterator[Path]:
    """Yield the state directories of this checkout's other stacks, which use the same ports; none where the environment names
    a state directory."""
    if STATE_VARIABLE in os.environ:
        return
    if state != default_state():
        yield default_state()
    if (other := elsewhere(default_state())) and other != state:
        yield other


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
