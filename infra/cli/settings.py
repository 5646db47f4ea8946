"""Commands about the settings in force."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.cli import errors
from infra.cli.app import ACCESS, Json, app, make, print_json

if TYPE_CHECKING:
    from infra.settings.in_force import Setting

settings_ = make("Show the settings in force, where each is from, and what must restart when it changes.", no_args_is_help=True)
app.add_typer(settings_, name="settings", rich_help_panel=ACCESS)


@settings_.command("show")
def show(
    key: Annotated[str, typer.Argument(metavar="[KEY]", help="only a section or a setting: serving.port")] = "",
    every: Annotated[bool, typer.Option("--all", help="also those that have their default")] = False,
    as_json: Json = False,
) -> None:
    """List the settings in force with their values and origins; secrets are hidden."""
    from infra.settings.in_force import DEFAULT

    found = _below(key)
    rows = found if every or key else [each for each in found if each.origin != DEFAULT]
    if as_json:
        return print_json([{"key": each.key, "value": each.value, "origin": each.origin, "holds": each.effect} for each in rows])
    for each in rows:
        print(f"{each.key} = {_text(each.value)}  ({_place(each.origin)})")
    if len(rows) < len(found):
        print(f"{len(found) - len(rows)} others have their default: `tabloop settings show --all`")


@settings_.command("explain")
def explain(
    key: Annotated[str, typer.Argument(metavar="KEY", help="a section or a setting: serving.port")],
    as_json: Json = False,
) -> None:
    """Explain a setting: its meaning, value, origin and default, and what makes a change hold."""
    from infra.settings.in_force import description

    rows = _below(key)
    if as_json:
        return print_json(
            [
                {
                    "key": e.key,
                    "value": e.value,
                    "origin": e.origin,
                    "default": e.default,
                    "holds": e.effect,
                    "meaning": description(e.key),
                }
                for e in rows
            ]
        )
    for each in rows:
        print(f"{each.key} = {_text(each.value)}")
        print(f"  from      {_place(each.origin)}")
        print(f"  default   {_text(each.default)}")
        print(f"  meaning   {description(each.key)}")
        print(f"  a change  {each.meaning}")


@settings_.command("diff")
def diff(
    file: Annotated[
        str, typer.Argument(metavar="[FILE]", help="file to compare with (default: the settings of the running parts)")
    ] = "",
    as_json: Json = False,
) -> int:
    """Compare the settings in force with those that the parts were started with, or with a file; 1 if any differs."""
    from infra import settings
    from infra.settings.in_force import effect_of, in_force
    from infra.settings.sources import named
    from infra.stack import started

    if file:
        theirs, ours = in_force(named(file)), in_force()
        found = [
            started.Change(key, theirs[key].value, each.value, effect_of(key))
            for key, each in ours.items()
            if theirs[key].value != each.value
        ]
        of = str(named(file))
    else:
        loaded = settings.load()
        state = settings.path(loaded.stack.state)
        if not (state / started.SETTINGS_NAME).exists():
            raise errors.Failed(f"no stack was started in {state}; `tabloop up` starts it", errors.NOT_READY)
        found, of = started.changes(state, loaded), "the running parts"
    if as_json:
        print_json([{"key": each.key, "theirs": each.before, "in force": each.after, "holds": each.effect} for each in found])
    else:
        from infra.settings.in_force import MEANING

        for each in found:
            print(each if file else f"{each}: {MEANING[each.effect]}")
        if not found:
            print(f"the settings in force are those of {of}")
    return errors.NO if found else errors.DONE


def _below(key: str) -> list["Setting"]:
    """Return the settings of a section, a setting, or all. Raises Failed for an unknown name."""
    from infra import settings
    from infra.settings.in_force import in_force

    found = [each for name, each in in_force().items() if not key or name == key or name.startswith(f"{key}.")]
    if not found:
        near = " or ".join(settings.nearest(key))
        hint = f"did you mean {near}?" if near else "`tabloop settings show --all` lists all"
        raise errors.Failed(f"{key}: no such setting; {hint}", errors.WRONG_USE)
    return found


def _text(value: object) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)


def _place(origin: str) -> str:
    """Return an origin with the file's path as short as it can be."""
    try:
        return str(Path(origin).relative_to(Path.cwd())) if origin.startswith("/") else origin
    except ValueError:
        return origin
