"""Estimate training memory per GPU: `tabloop memory --model DIR --gpu 80GB --gpus 8`.

Prints what each part of a layout takes, and proposes layouts with the largest micro-batch that fits. Reads config.json alone.
"""

import re
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from infra.model.architectures import Architecture
from infra.settings.training import Recipe
from tasks.trainer.memory.estimate import (
    Layout,
    Means,
    MicroBatchSize,
    Proposal,
    Trained,
    estimate,
    propose,
    usable,
)

GB = 1e9
UNITS = {"GB": 1e9, "GIB": 2**30}
PARTS = {
    "weights": "weights",
    "masters": "masters",
    "gradients": "grads",
    "adam": "Adam",
    "activations": "activ.",
    "logits": "logits",
    "backward": "backw.",
    "step": "step",
}
"""Titles of the parts of an estimate."""
MOST_SHOWN = 6
"""Layouts to show."""


class DoesNotFit(ValueError):
    """A layout needs more memory than a process has."""


def check_fits(model: Architecture, settings: Recipe, layout: Layout, size: MicroBatchSize, card: int, bf16: bool) -> None:
    """Refuse a layout that cannot fit, before anything is loaded.

    Args:
        size: tokens and selected positions of the largest micro-batch.
        card: bytes of memory of a process.

    Raises:
        DoesNotFit: names the need, the memory and the settings that fit.
        ValueError: the model cannot be split this way.
    """
    selective = settings.megatron_arguments.get("recompute_granularity") == "selective"
    recompute = "selective" if selective else settings.recompute
    means = Means(recompute, settings.sequence_parallel, settings.distributed_optimizer)
    trained = Trained(settings.frozen_layers, settings.adapter_rank)
    needed = estimate(model, layout, size, bf16=bf16, trained=trained, means=means)
    if needed.total <= card:
        return
    fitting = propose(model, card, layout.processes, bf16=bf16, trained=trained)
    more = "use more" if settings.adapter_rank else "use more, or train an adapter (train.adapter_rank)"
    parts = ", ".join(f"{part} {getattr(needed, part) / GB:.1f}" for part in PARTS)
    advice = f"these settings fit: {in_settings(fitting[0])}" if fitting else f"no layout of these processes fits: {more}"
    raise DoesNotFit(
        f"{layout} with micro-batches of {size.tokens} tokens and {size.positions} selected positions needs "
        f"{needed.total / GB:.1f} GB ({parts}), a process has {card / GB:.1f} GB; {advice}"
    )


def in_settings(proposal: Proposal) -> str:
    """Format a proposal as settings."""
    layout, size, means = proposal.layout, proposal.size, proposal.means
    saving = [
        *([f'train.recompute = "{means.recompute}"'] if means.recompute != "none" else []),
        *(["train.sequence_parallel = true"] if means.sequence else []),
        *(["train.distributed_optimizer = true"] if means.distributed else []),
    ]
    return ", ".join(
        (
            *(f"train.tensor_parallel = {layout.tensor}", f"train.pipeline_parallel = {layout.pipeline}"),
            *(f"train.micro_batch_tokens = {size.tokens}", f"train.micro_batch_positions = {size.positions}"),
            *saving,
        )
    )


def bytes_of(text: str) -> int:
    """Return the bytes of a size such as 80GB or 80GiB. Raises ValueError: not a size above 0 such as "80GB"."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)\s*(GB|GiB)", text, re.IGNORECASE)
    size = int(float(found[1]) * UNITS[found[2].upper()]) if found else 0
    if not size:
        raise ValueError(f"--gpu {text!r}: expected a size such as 80GB or 80GiB")
    return size


def show(
    model: Architecture,
    card: int,
    cards: int,
    wanted: tuple[Layout, MicroBatchSize, Means] | None,
    bf16: bool,
    adapter_rank: int = 0,
) -> bool:
    """Print the estimate; return whether a layout fits."""
    trained = Trained(adapter_rank=adapter_rank)
    console = Console(width=120 if not sys.stdout.isatty() else None)
    console.print(
        f"{model.family}, {model.parameters / 1e6:,.0f} million parameters; {cards} x {card / GB:.0f} GB, of which "
        f"{usable(card) / GB:.1f} GB are planned with; {'bfloat16 over float32 masters' if bf16 else 'float32'}"
        + (f"; an adapter of rank {adapter_rank}" if adapter_rank else "")
    )
    if wanted:
        layout, size, means = wanted
        needed = estimate(model, layout, size, bf16=bf16, trained=trained, means=means)
        verdict = "fits" if needed.total <= usable(card) else "does not fit"
        console.print(table([Proposal(layout, size, means, needed)], f"asked for: {verdict}"))
        return needed.total <= usable(card)
    fitting = propose(model, card, cards, bf16=bf16, trained=trained)
    if not fitting:
        console.print("no layout fits: take more cards, or larger ones")
        return False
    console.print(table(fitting[:MOST_SHOWN], f"the best of {len(fitting)} layouts that fit; GB of the process that needs most"))
    console.print(f"proposed: {in_settings(fitting[0])}", soft_wrap=True)
    return True


def table(proposals: Sequence[Proposal], title: str) -> Table:
    """Return a table of layouts with their parts in GB.

    "with" lists the memory options: dist, the distributed optimizer; seq, sequence parallelism; and the recomputation.
    """
    shown = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for name in ("TP", "PP", "DP", "tokens", "selected", "with", *PARTS.values(), "peak"):
        shown.add_column(name, justify="right", no_wrap=True)
    for proposal in proposals:
        layout, size = proposal.layout, proposal.size
        values = (layout.tensor, layout.pipeline, layout.data, size.tokens, size.positions, in_short(proposal.means))
        shown.add_row(*map(str, values), *(f"{getattr(proposal.memory, part) / GB:.1f}" for part in (*PARTS, "total")))
    return shown


def in_short(means: Means) -> str:
    """Abbreviate the memory options for the table."""
    names = {"dist": means.distributed, "seq": means.sequence, means.recompute: means.recompute != "none"}
    return " ".join(name for name, used in names.items() if used)
