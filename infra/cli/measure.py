"""Commands that measure, demonstrate and compare."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from infra.cli import errors
from infra.cli.app import MEASURE, DeveloperKind, Json, app, command, make, use_demo_settings

Seed = Annotated[int, typer.Option(min=0, help="seed of all draws")]
Users = Annotated[int, typer.Option(min=1, help="number of simulated developers")]
Code = Annotated[
    list[Path] | None,
    typer.Option(metavar="DIR", help="type the Python files below (default: the held-out packages); may be repeated"),
]
Rate = Annotated[float, typer.Option(min=0, help="maximum requests a second; 0: limited by --concurrency only")]
Concurrency = Annotated[int, typer.Option(min=1, help="developers who type at the same time, each in a file of their own")]
Minutes = Annotated[
    float,
    typer.Option(min=0, help="begin no part after so many minutes, and end with 3; the next call goes on", show_default=False),
]
Quick = Annotated[bool, typer.Option("--quick", help="a small size: wider intervals, written to var/bench/quick")]


def share(text: str) -> float:
    """Return a share; a text that is no number between 0 and 1 is refused."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise typer.BadParameter(f"{text!r} is not in the range 0<=x<=1")
    return value


@command(MEASURE)
def bench(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="none: all but `fleet`")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="run each in a small size, about 10 minutes for all")] = False,
) -> int:
    """Run benchmarks and write var/bench/NAME.json; 1 if a target is missed."""
    use_demo_settings()
    from evals.bench import suite
    from infra import settings

    with errors.expected(suite.CannotRun, code=errors.WRONG_USE), errors.expected(RuntimeError):
        return errors.DONE if suite.run(settings.load(), names or (), quick=quick) else errors.NO


@command(MEASURE)
def compare(
    models: Annotated[
        list[str], typer.Argument(metavar="BASELINE MODEL...", help="directories, versions, champion or challenger")
    ],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME", help="evaluation set (default: all); may be repeated")
    ] = None,
    language: Annotated[list[str] | None, typer.Option(help="language (extension) of the positions; may be repeated")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="number of positions of each set (default: the settings')")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="seed of positions and draws (default: evaluate.seed)")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="sampling temperature (default: as served); 0 is greedy")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="best and worst positions to show per model")] = 3,
    html: Annotated[Path | None, typer.Option(help="file to write the report to")] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="log the comparison as a run in MLflow")] = False,
    as_json: Json = False,
) -> None:
    """Compare models at the same held-out positions."""
    from evals.compare.run import Options, run
    from infra import settings

    options = Options(sets or (), language or (), samples, seed, temperature, examples, html, mlflow, as_json)
    with errors.expected(ValueError, code=errors.WRONG_USE):
        run(settings.load(), models, options)


@command(MEASURE)
def evaluate(
    checkpoint: Annotated[Path, typer.Argument(help="directory in Hugging Face layout")],
    samples: Annotated[int | None, typer.Option(min=1, help="number of positions (default: evaluate.samples)")] = None,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="sampling temperature; 0 is greedy")] = 0.0,
    seed: Annotated[int | None, typer.Option(min=0, help="seed of positions and draws (default: evaluate.seed)")] = None,
    order: Annotated[Literal["psm", "spm"] | None, typer.Option(help="FIM order (default: model.fim_order)")] = None,
    examples: Annotated[int, typer.Option(min=0, help="number of positions to print")] = 0,
) -> None:
    """Score one checkpoint at held-out positions."""
    from evals.compare.checkpoint import report
    from infra import settings

    errors.expect_checkpoint(checkpoint)
    report(checkpoint, settings.load(), samples=samples, temperature=temperature, seed=seed, order=order, examples=examples)


@command(MEASURE)
def sets() -> int:
    """Show the held-out sets of the settings, as a cycle would build them."""
    import sys

    from evals.compare.sets import show
    from infra import settings

    failed = show(settings.load().evaluate)
    for error in failed:
        print(error, file=sys.stderr)
    return errors.NO if failed else errors.DONE


@command(MEASURE)
def developers(
    url: Annotated[str, typer.Option(help="Continue's apiBase (default: the settings' server)", show_default=False)] = "",
    feedback_url: Annotated[
        str, typer.Option(help="destination in Continue's data block (default: the settings' server)", show_default=False)
    ] = "",
    token: Annotated[
        str, typer.Option(help="bearer token with the role users (default: serving.simulation_token)", show_default=False)
    ] = "",
    users: Users = 120,
    seed: Seed = 0,
    code: Code = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="end after so many requests (default 500 without --seconds)")
    ] = None,
    seconds: Annotated[float | None, typer.Option(min=0, help="end after so many seconds")] = None,
    speed: Annotated[float, typer.Option(min=0.01, max=1e6, help="how many times faster than people")] = 20.0,
    rate: Rate = 0.0,
    concurrency: Concurrency = 16,
    silent: Annotated[
        float,
        typer.Option(parser=share, metavar="SHARE", help="share of developers whose editor, like Zed, reports nothing"),
    ] = 0.25,
    kind: DeveloperKind = "plain",
    first_visit: Annotated[
        int, typer.Option(min=0, help="number of the first session; continues an earlier run of this seed")
    ] = 0,
    version: Annotated[
        str, typer.Option(metavar="PIN", help="request this version (X-Tabloop-Version); needs the role versions")
    ] = "",
    report: Annotated[Path | None, typer.Option(help="JSON file for the counts by user and version, with examples")] = None,
    decisions: Annotated[Path | None, typer.Option(help="JSON-lines file for every decision with the real text")] = None,
) -> int:
    """Run simulated developers against any server; 1 if no request is answered."""
    from dataclasses import replace

    from evals.developers import KINDS, Address, RunSettings, any_server
    from infra import settings

    loaded = settings.load()
    serving, secret = loaded.serving, loaded.serving.simulation_token
    address = Address(
        (url or f"{serving.completions_url}/v1").rstrip("/"),
        feedback_url or f"{serving.feedback_url}/v1/continue/events",
        token or (secret.get_secret_value() if secret else ""),
        version,
        loaded.model.name,
    )
    options = RunSettings(
        address=address,
        users=users,
        seed=seed,
        requests=500 if requests is None and seconds is None else requests,
        seconds=seconds,
        speed=speed,
        rate=rate,
        concurrency=concurrency,
        first_visit=first_visit,
        quirks=replace(KINDS[kind], silent_editors=silent),
    )
    return errors.DONE if any_server.run_and_report(options, code or (), report, decisions) else errors.NO


@command(MEASURE)
def screens(
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder of the pictures")] = Path("var/demo/screens"),
    scheme: Annotated[Literal["light", "dark"], typer.Option(help="colour scheme")] = "light",
    width: Annotated[int, typer.Option(min=320, help="width of the browser in pixels; 390: a phone's")] = 1280,
) -> None:
    """Take pictures of the five screens of a finished demo."""
    from evals.demo.screens import NoScreens, run
    from infra import settings

    with errors.expected(NoScreens, code=errors.WRONG_USE):
        for file in run(settings.load(), scheme, out, width):
            print(file)


study_ = make("Run a study: recipes of training, hacked rewards, or a judge in place of developers.", no_args_is_help=True)
app.add_typer(study_, name="study", rich_help_panel=MEASURE)


@study_.command("recipes")
def recipes(
    recipes: Annotated[list[str] | None, typer.Option(metavar="NAME", help="recipe (default: all); may be repeated")] = None,
    seeds: Annotated[
        list[int] | None, typer.Option(min=0, help="of developers, positions and sampling (default 0 to 4); may be repeated")
    ] = None,
    users: Users = 240,
    interactions: Annotated[
        str, typer.Option(help="requests after which models are compared: 1800..28800 (default 7200)", show_default=False)
    ] = "",
    update: Annotated[int, typer.Option(min=1, help="most requests of one update")] = 7200,
    places: Annotated[int | None, typer.Option(min=1, help="positions of later code; half on new files (default 3000)")] = None,
    minutes: Minutes = math.inf,
    quick: Quick = False,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--kind", metavar="KIND", help="of developers: people, who work in a closed loop, or plain (default: both)"),
    ] = None,
    cycles: Annotated[
        int, typer.Option(min=0, max=8, help="updates in a row, with a comparison after each; 0: those of --interactions")
    ] = 0,
) -> int:
    """Compare what recipes learn from simulated developers."""
    use_demo_settings()
    from evals.studies.recipes.bench import Options, counts, kinds_of, study
    from infra import settings

    with errors.expected(ValueError, code=errors.WRONG_USE):
        after = counts(interactions) if interactions else ()
        options = Options(recipes or (), seeds or (), users, after, update, places, minutes, quick, kinds_of(kinds or ()), cycles)
        return study(settings.load(), options)


@study_.command("hacks")
def hacks(
    minutes: Minutes = math.inf,
    quick: Quick = False,
) -> int:
    """Plant models that hack their reward, and see what the gate and the loop make of them."""
    use_demo_settings()
    from evals.studies.recipes.hacks import study
    from infra import settings

    with errors.expected(ValueError, code=errors.WRONG_USE):
        return study(settings.load(), minutes, quick)


@study_.command("repositories")
def repositories(
    sources: Annotated[list[str], typer.Argument(metavar="DIR|REPOSITORY...", help="repositories, each learnt from alone")],
    language: Annotated[list[str] | None, typer.Option(help="ending of the files (default: all); may be repeated")] = None,
    places: Annotated[int, typer.Option(min=0, help="most positions to train on; 0: collect.max_samples")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder of samples, checkpoints and result.json")] = Path(
        "var/studies/repositories"
    ),
) -> None:
    """Train on repositories as `tabloop learn` does, and compare each candidate with the base; no stack is needed."""
    use_demo_settings()
    from evals.studies.own_code import study
    from infra import settings
    from tasks.own_code.repository import NoCode

    with errors.expected(NoCode):
        study(settings.load(), sources, language or (), places, out)


@study_.command("judged")
def judged(
    out: Annotated[Path | None, typer.Option(help="folder of samples and checkpoints (default: judged.folder)")] = None,
    recipes: Annotated[list[str] | None, typer.Option(metavar="NAME", help="(default: both); may be repeated")] = None,
) -> None:
    """Train on the answers of an LLM judge, and score base and trained models."""
    from evals.studies.judged.run import ERRORS, run
    from evals.studies.judged.settings import load

    with errors.expected(*ERRORS):
        run(load(), recipes or (), out)
