"""Commands about models, their training and the documentation."""

import math
from pathlib import Path
from typing import Annotated, Literal

import typer

from infra.cli import errors
from infra.cli.app import PROJECT, app, command, make

base = make(
    "Train and tune the small base model anew, over that of infra/base_model; a COMMAND does one step.",
    invoke_without_command=True,
)
app.add_typer(base, name="base", rich_help_panel=PROJECT)
OF_ONE_LAYOUT = ("pipeline", "tokens", "positions", "recompute", "sequence", "distributed")
"""Options of `tabloop memory` that only the layout of --tensor reads."""


@base.callback()
def base_model(context: typer.Context) -> None:
    """Run the steps `train` and `tune` as the shipped model had them."""
    if context.invoked_subcommand:
        return
    import subprocess
    import sys

    for arguments in (("train",), ("tune", "--exponent", "0"), ("tune", "--seed", "1")):
        # Each in a process of its own: torch's threads and process groups are made once.
        if code := subprocess.run((sys.executable, "-m", "infra.cli", "base", *arguments), check=False).returncode:
            raise typer.Exit(code)


@base.command("train")
def train(
    tokens: Annotated[int, typer.Option(min=1, help="tokens to train on")] = 16_000_000,
    minutes: Annotated[
        float, typer.Option(min=0, help="longest run; the schedule then ends with fewer tokens", show_default=False)
    ] = math.inf,
    learning_rate: Annotated[float, typer.Option(min=0, help="peak learning rate")] = 4e-3,
    seed: Annotated[int, typer.Option(min=0, help="of files, cursors and weights")] = 0,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads of each process")] = 2,
    parent: Annotated[Path | None, typer.Option(help="checkpoint to continue from; choose another --seed")] = None,
    work: Annotated[Path, typer.Option(help="folder for rows and tokenizer")] = Path("var/base"),
    out: Annotated[Path, typer.Option(help="folder to write")] = Path("infra/base_model"),
) -> None:
    """Train the base model on Python files that every installation has."""
    if parent:
        errors.expect_checkpoint(parent)
    from evals.base_model.train import Options, run

    run(Options(tokens, minutes, learning_rate, seed, threads, parent, work, out))


@base.command("tune")
def tune(
    model: Annotated[Path, typer.Option(help="checkpoint to tune, in place")] = Path("infra/base_model"),
    places: Annotated[int, typer.Option(min=0, help="positions to train on; 0: only choose the temperature")] = 19_200,
    learning_rate: Annotated[float, typer.Option(min=0, help="learning rate at the start")] = 1e-3,
    exponent: Annotated[float, typer.Option(min=0, max=1, help="train.settled_exponent; 0: the cross-entropy")] = 0.3,
    compared: Annotated[int, typer.Option(min=1, help="positions that each temperature is tried at")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="of positions and draws")] = 0,
) -> None:
    """Tune the base model to the positions where editors ask, and choose its temperature."""
    errors.expect_checkpoint(model)
    from evals.base_model.tuning import Options, run
    from infra import settings

    run(settings.load(), Options(model, places, learning_rate, exponent, compared, seed))


@base.command("fetch")
def fetch() -> None:
    """Download the base model from the bucket to model.base, verified, unless it is there."""
    from infra import settings
    from infra.stack import seed
    from infra.storage.store import Corrupt, Incomplete

    loaded = settings.load()
    try:
        fetched = seed.fetch_base(loaded)
    except Incomplete as error:
        raise errors.Failed(f"{error.args[0]}; `tabloop bootstrap --base FROM` uploads the base model") from None
    except Corrupt as error:
        raise errors.Failed(f"{error}; upload the base model again") from None
    print(f"{loaded.model.base}: {'fetched' if fetched else 'unchanged'}")


@command(PROJECT)
def memory(
    context: typer.Context,
    model: Annotated[Path, typer.Option(help="directory of a checkpoint in Hugging Face's layout; config.json is enough")],
    gpu: Annotated[str, typer.Option(help="memory of a card: 80GB, 141GB, 80GiB")],
    gpus: Annotated[int, typer.Option(min=1, max=10_000, help="number of cards")] = 1,
    tensor: Annotated[int | None, typer.Option(min=1, help="show this tensor-parallel size instead of proposals")] = None,
    pipeline: Annotated[int, typer.Option(min=1, help="with --tensor: pipeline-parallel size")] = 1,
    tokens: Annotated[int, typer.Option(min=1, max=1 << 24, help="with --tensor: tokens of a micro-batch")] = 8192,
    positions: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 24, help="with --tensor: selected positions of a micro-batch (default: an eighth of the tokens)"
        ),
    ] = None,
    recompute: Annotated[Literal["none", "selective", "full"], typer.Option(help="with --tensor: train.recompute")] = "none",
    sequence: Annotated[bool, typer.Option("--sequence", help="with --tensor: train.sequence_parallel")] = False,
    distributed: Annotated[bool, typer.Option("--distributed", help="with --tensor: train.distributed_optimizer")] = False,
    float32: Annotated[bool, typer.Option("--float32", help="estimate for train.precision = float32")] = False,
    adapter_rank: Annotated[int, typer.Option(min=0, max=256, help="train.adapter_rank; 0: the weights are trained")] = 0,
) -> int:
    """Estimate the memory of training, and propose layouts; 1 if nothing fits."""
    from infra.model.architectures import UnsupportedCheckpoint, read
    from tasks.trainer.memory.estimate import Layout, Means, MicroBatchSize
    from tasks.trainer.memory.fit import bytes_of, show

    wanted = None
    if tensor:
        data, rest = divmod(gpus, tensor * pipeline)
        if rest or not data:
            raise errors.Failed(
                f"--gpus {gpus}: expected a multiple of --tensor x --pipeline = {tensor * pipeline}", errors.WRONG_USE
            )
        if sequence and tensor == 1:
            raise errors.Failed("--sequence: expected --tensor 2 or more, over which it splits; leave it out", errors.WRONG_USE)
        size = MicroBatchSize(tokens, positions or max(1, tokens // 8))
        wanted = Layout(tensor, pipeline, data), size, Means(recompute, sequence, distributed)
    elif unread := [name for name in OF_ONE_LAYOUT if _is_given(context, name)]:
        raise errors.Failed(
            f"--{unread[0]} describes one layout, expected --tensor beside it; leave it out for proposals", errors.WRONG_USE
        )
    with errors.expected(UnsupportedCheckpoint, ValueError, code=errors.WRONG_USE):
        return errors.DONE if show(read(model), bytes_of(gpu), gpus, wanted, not float32, adapter_rank) else errors.NO


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@command(PROJECT)
def merge(
    version: Annotated[str, typer.Argument(help="number of a version, or directory of an adapter", show_default=False)],
    out: Annotated[Path, typer.Argument(help="directory to write, which is not there yet", show_default=False)],
    base: Annotated[
        Path | None, typer.Option(help="checkpoint that the directory's adapter was trained on", show_default=False)
    ] = None,
) -> int:
    """Write full weights: a version's, or those of an adapter's directory and its --base. Adapters are merged in float32."""
    from infra.model.adapter_files import merge as merge_files

    if out.exists():
        raise errors.Failed(f"{out} is there already, expected a new directory: name another one", errors.WRONG_USE)
    with errors.expected(ValueError, code=errors.WRONG_USE):
        if base:
            merge_files(base, Path(version), out)
        else:
            _write_version(version, out)
    print(f"wrote {out}")
    return errors.DONE


def _write_version(version: str, out: Path) -> None:
    from infra import settings as configuration
    from infra.cli.loop import number_of
    from infra.registry.checkpoints import write_whole
    from infra.registry.client import Registry
    from infra.storage.store import Incomplete, ObjectStore

    settings = configuration.load()
    number = number_of(version)
    if not number.isdecimal():
        raise errors.Failed(
            f"{version}: expected the number of a version, as in `tabloop history`, or the directory of an adapter with --base",
            errors.WRONG_USE,
        )
    store, registry = ObjectStore.connect(settings.store), Registry.connect(settings.registry)
    with errors.expected(Incomplete):
        write_whole(store, registry, number, configuration.path(settings.train.folder) / "versions", out)


@command(PROJECT)
def docs() -> int:
    """Build the documentation into var/docs; `make docs` installs its packages."""
    from evals.docs import site
    from infra import settings

    with errors.expected(FileNotFoundError):
        if not site.build(settings.ROOT, settings.load(), app):
            return errors.NO
    print("open var/docs/index.html")
    return errors.DONE
