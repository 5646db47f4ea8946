"""Commands that plan: the next A/B test, and the parts that a rate of requests needs."""

import math
from pathlib import Path
from typing import Annotated

import typer

from infra.cli import errors
from infra.cli.app import LOOK, Json, Project, app, make, print_json
from infra.cli.loop import store_of

PROMPT = 1536
"""Tokens of a prompt, of a model that reads so many."""


def finite(value: float) -> float:
    """Return a number; NaN and infinity are refused."""
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not finite")
    return value


def refuse_options(context: typer.Context) -> None:
    """Refuse options before a subcommand, which does not read them.

    Raises:
        BadParameter: names the option and the command that lists others.
    """
    for option in context.command.params:
        source = context.get_parameter_source(option.name or "")
        if source and source.name == "COMMANDLINE":
            command = context.invoked_subcommand
            raise typer.BadParameter(
                f"{option.opts[0]} stands before `{command}`, which does not read it; "
                f"see the options of `{context.command_path} {command} --help`"
            )


plan_ = make("Show what an A/B test can find, or the parts that a rate of requests needs.", invoke_without_command=True)
app.add_typer(plan_, name="plan", rich_help_panel=LOOK)


@plan_.callback()
def plan(
    context: typer.Context,
    days: Annotated[float, typer.Option(min=0.04, max=366, callback=finite, help="days of recent traffic to plan from")] = 7.0,
    project: Project = "",
    as_json: Json = False,
) -> None:
    """Show what an A/B test can find, the next test, and which projects are large enough for a champion of their own."""
    if context.invoked_subcommand:
        return refuse_options(context)
    import time

    from infra import settings
    from tasks.experiments.planning.report import outlook

    loaded = settings.load()
    found = outlook(store_of(loaded, project), loaded, time.time(), days)
    if as_json:
        print_json(found.values())
    else:
        print(found)


@plan_.command("capacity")
def capacity(
    requests: Annotated[str, typer.Option(metavar="RATE", help="completions, as 10000/day, 1M/day, 300/hour or 5/s")],
    hours: Annotated[
        float, typer.Option(min=0.1, max=24, callback=finite, help="hours of a day in which people work; 24: everywhere")
    ] = 8.0,
    prompt: Annotated[
        int | None, typer.Option(min=1, help="tokens of a prompt (default: 1536, or as many as the model reads)")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="directory of a checkpoint; config.json is enough (default: the shapes of 1.5B)"),
    ] = None,
    gpu: Annotated[str, typer.Option(metavar="GPU", help="H100, H200, or a card's memory: 80GB, 141GB")] = "H200",
    tensor: Annotated[
        int, typer.Option(min=0, help="cards of an engine; 0: tensor_parallel_size of serving.engine_arguments")
    ] = 0,
    gpu_rate: Annotated[
        float,
        typer.Option(
            min=0, callback=finite, help="completions a second that an engine of yours serves; 0: of those that were measured"
        ),
    ] = 0.0,
    core: Annotated[
        float,
        typer.Option(
            min=0.1, max=10, callback=finite, help="speed of your core over the reference's, by `tabloop bench capacity`"
        ),
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Show the parts that a rate of requests needs, the first limit that it reaches, and the source of each number."""
    from infra import settings
    from infra.model.architectures import UnsupportedCheckpoint
    from tasks.experiments.planning import capacity as planned
    from tasks.experiments.planning import engine as engines
    from tasks.experiments.planning.cards import NotACard, card_of

    loaded = settings.load()
    with errors.expected(planned.NotARate, UnsupportedCheckpoint, NotACard, engines.NotAnEngine, code=errors.WRONG_USE):
        rate = planned.per_day(requests)
        of = engines.read_model(model) if model else engines.MEASURED_MODEL
        engine = engines.Engine(of, card_of(gpu, gpu_rate), tensor or engines.cards_of(loaded), gpu_rate)
        tokens = prompt or min(PROMPT, of.longest)
        engines.check(engine, tokens)
    with errors.expected(engines.DoesNotFit):
        engines.check_fits(engine, tokens)
    found = planned.capacity(planned.Load(rate, hours, tokens, core=core), loaded, engine)
    if as_json:
        print_json(found.values())
    else:
        print(found)
