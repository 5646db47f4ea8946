"""The application of the console command: its groups of commands, its errors and its help."""

import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from infra.cli import errors

GROUPS = (
    "The stack on this machine",
    "The loop",
    "Look closer",
    "Access and settings",
    "Measure",
    "Models, pages and other programs",
)
"""Groups of commands, in the order of the help."""
STACK, LOOP, LOOK, ACCESS, MEASURE, PROJECT = GROUPS
BUILT = (("BUILD_COMMIT", "commit"), ("BUILD_TARGET", "image"))
"""Variables that an image sets (infra/images/Containerfile), with their words in `tabloop version`."""
HELP = """Make a team's code-completion model better from every Tab press.

A newcomer begins with `tabloop demo`, or with `tabloop up` and `tabloop try`. Commands use the settings that `tabloop up` was
started with, by default those of a small team. `tabloop COMMAND --help` lists a command's options.
"""
EPILOG = """Exit codes: 0 done; 1 the answer is no, or a target is missed; 2 wrong usage or settings; 3 a server or part does not
answer, or work is left; 130 interrupted; 141 the reader of the output has gone."""


class Commands(TyperGroup):
    """A group of commands that shows the user's errors without a traceback, and lists its commands by group."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options before a command; the error for one that stands behind a command says so."""
        try:
            return super().parse_args(ctx, args)
        except BrokenPipeError:  # of the help
            errors.discard_output()
            raise typer.Exit(errors.READER_GONE) from None
        except Exception as error:
            option = _unknown_option(error)
            if taker := next(_takers(self, option), ""):
                _add(error, f"It stands behind its command, as in `{ctx.command_path} {taker} {option}`")
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it returns is the exit code."""
        try:
            code = super().invoke(ctx)
        except BrokenPipeError:
            errors.discard_output()
            raise typer.Exit(errors.READER_GONE) from None
        except Exception as error:
            if isinstance(error, OSError) and errors.lost_output():
                raise
            if (known := errors.code_of(error)) is None:
                option = _unknown_option(error)
                if parameter := next((each for each in self.params if option in each.opts), None):
                    words = (ctx.command_path, option, getattr(parameter, "metavar", None), _command_of(error, ctx))
                    _add(error, f"It stands before the command: `{' '.join(filter(None, words))}`")
                raise
            print(f"{ctx.command_path} {ctx.invoked_subcommand or ''}".strip() + f": {errors.message_of(error)}", file=sys.stderr)
            raise typer.Exit(known) from None
        except KeyboardInterrupt:
            print(f"\n{ctx.command_path} {ctx.invoked_subcommand or ''}".rstrip() + ": interrupted", file=sys.stderr)
            raise typer.Exit(errors.INTERRUPTED) from None
        if isinstance(code, int) and code:
            raise typer.Exit(code)
        return code

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a list of commands for each group, those of an inner group in one list."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        widest = max(len(name) for name, _ in commands)
        panels = {name: str(getattr(each, "rich_help_panel", None) or "Commands") for name, each in commands}
        for group in (*GROUPS, "Commands"):
            rows = [(name.ljust(widest), each.get_short_help_str(200)) for name, each in commands if panels[name] == group]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


def _unknown_option(error: Exception) -> str:
    """Return the option that a usage error does not know; empty for another error. typer exports no class of it."""
    return str(getattr(error, "option_name", "")) if hasattr(error, "possibilities") else ""


def _takers(group: Any, option: str, before: str = "") -> Iterator[str]:
    """Yield the commands of a group that take an option."""
    for name, each in group.commands.items():
        if any(option in of_command.opts for of_command in each.params):
            yield before + name
        if hasattr(each, "commands"):
            yield from _takers(each, option, f"{before}{name} ")


def _command_of(error: Any, ctx: Any) -> str:
    """Return the words of the command whose option is unknown, without those of the application."""
    return str(error.ctx.command_path).removeprefix(f"{ctx.command_path} ")


def _add(error: Any, words: str) -> None:
    """Add a sentence to a usage error, in place of options that are spelt alike."""
    error.message, error.possibilities = f"{error.message}. {words}", None


def make(help: str, epilog: str | None = None, **options: Any) -> typer.Typer:
    """Return an application of commands. Without rich, whose import takes as long as everything else."""
    return typer.Typer(
        cls=Commands,
        help=help,
        epilog=epilog,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


app = make(HELP, EPILOG, no_args_is_help=True)


def command(group: str, name: str | None = None, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds a function as a command of a group."""
    return app.command(name, rich_help_panel=group, **options)


def show_version(wanted: bool) -> None:
    """Print the version and the folder of the code that runs; in an image, also its commit and target."""
    if wanted:
        import os

        from infra.settings import release

        built = [f"{word} {os.environ[name]}" for name, word in BUILT if os.environ.get(name)]
        typer.echo(", ".join([f"tabloop {release.installed()}", *built, str(release.ROOT)]))
        raise typer.Exit


Json = Annotated[bool, typer.Option("--json", help="print JSON")]
"""Option of a command that can print JSON."""
DeveloperKind = Annotated[
    Literal["plain", "people"], typer.Option(help="people also edit near misses, take alternatives, explore and tire")
]
Project = Annotated[str, typer.Option(help="project with a champion of its own (default: the common loop)", show_default=False)]
SettingsFile = Annotated[
    str | None,
    typer.Option("--settings", metavar="FILE", help="settings file, or the name of one in infra/settings", show_default=False),
]


def not_empty(context: typer.Context, parameter: typer.CallbackParam, value: str) -> str:
    """Return an argument that may be left out; an empty one, as of a variable that is not set, is no argument left out."""
    source = context.get_parameter_source(parameter.name or "")
    if not value and source and source.name == "COMMANDLINE":
        raise typer.BadParameter("got ''; leave it out where none is meant")
    return value


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def use_settings(file: str | None) -> None:
    """Let this process and its children read a settings file, if one is given; the settings refuse an empty name."""
    import os

    if file is not None:
        os.environ["TABLOOP_SETTINGS"] = os.path.abspath(file) if os.path.exists(file) else file


def use_demo_settings(file: str = "demo.toml") -> None:
    """Let this process and its children read settings of simulated developers where no file is given."""
    import os

    os.environ.setdefault("TABLOOP_SETTINGS", file)


@app.callback()
def options(
    settings: SettingsFile = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options before a command."""
    use_settings(settings)
