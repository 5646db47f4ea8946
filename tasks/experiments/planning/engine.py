"""An engine of a model on a card: what it holds, whether it fits, and the completions a second that are planned for it.

The rate was measured for one model on one card. For others it is lowered by the ideal times of both: prefill is bound by
operations, decode by the bytes that each token reads (Pope et al. 2022, "Efficiently scaling transformer inference", section 2).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

from infra.model import adapters, architectures
from infra.model.architectures import Architecture, UnsupportedCheckpoint
from infra.settings import Settings
from tasks.experiments.planning.cards import CARDS, EXAMPLE, GB, Card
from tasks.experiments.planning.costs import ADAPTERS, ENGINE_BYTES, GPU_RATE, Cost, Row, number
from tasks.trainer.memory import estimate as memory
from tasks.trainer.memory.estimate import EVERYTHING, Layout, Proposal, Trained, propose
from tasks.trainer.model.peaks import BANDWIDTHS, FLOAT32_PEAKS, PEAKS

MEASURED_PROMPT, TOKENS, STREAMS = 512, 24, 32
"""Tokens of the prompts and completions, and streams of an engine, at which its rate was measured."""
SHARED = 0.5
"""Share of a prompt's tokens that the prefix cache holds, as in the measurement."""
UTILISATION = 0.9
"""Share of a card that an engine takes (serving.engine_arguments.gpu_memory_utilization in production.toml)."""
RANK, HELD = 16, 4
"""Rank of an adapter, and adapters that an engine holds at least (serving.adapters)."""
LEAST_RATE = 0.001
"""Completions a second that the user may give at least."""
CARDS_OF_TRAINER = (1, 2, 4, 8, 16, 32)
TENSOR_SIZES = (2, 4, 8)


class NotAnEngine(ValueError):
    """A model cannot be divided over so many cards, or cannot read so long a prompt."""


class DoesNotFit(ValueError):
    """An engine needs more memory than its cards have."""


@dataclass(frozen=True)
class Model:
    """A model by its config.json."""

    name: str
    architecture: Architecture
    dtype: str = "bfloat16"
    """Type of weights and KV cache."""
    named: bool = True
    """Whether its config.json names the type."""

    @property
    def width(self) -> int:
        """Bytes of a weight, and of a number of the KV cache."""
        return architectures.WEIGHT_BYTES[self.dtype]

    @property
    def weights(self) -> int:
        """Bytes of all weights."""
        return self.width * self.architecture.parameters

    @property
    def cache(self) -> int:
        """Bytes of the KV cache for a token."""
        shape = self.architecture
        return 2 * shape.layers * shape.groups * shape.head * self.width

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt, after which TOKENS are sampled."""
        return self.architecture.positions - TOKENS

    @property
    def adapter(self) -> int:
        """Bytes of an adapter of RANK, which is stored in float32."""
        return 4 * sum(prod(shape) for shape in adapters.tensors(self.architecture, RANK).values())


MEASURED_MODEL = Model(
    "1.5B",
    architectures.parse(
        {
            **{"model_type": "qwen2", "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28},
            **{"num_attention_heads": 12, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
            **{"max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6},
        },
        "Qwen2.5-Coder-1.5B",
    ),
)
"""The model whose rate was measured: the shapes of Qwen2.5-Coder-1.5B."""
MEASURED_CARD = CARDS[1]


@dataclass(frozen=True)
class Engine:
    """A model on a card, or divided over several by tensor parallelism."""

    model: Model = MEASURED_MODEL
    card: Card = MEASURED_CARD
    tensor: int = 1
    """Cards of an engine."""
    given_rate: float = 0.0
    """Completions a second of an engine that the user measured; 0: none."""

    def needs(self, prompt: int) -> tuple[float, float, float]:
        """Return the bytes of weights, of the KV cache for STREAMS, and of everything else, on each card."""
        streams = STREAMS * (prompt + TOKENS) * self.model.cache
        return self.model.weights / self.tensor, streams / self.tensor, ENGINE_BYTES.value + HELD * self.model.adapter

    @property
    def room(self) -> float:
        """Bytes of each card that an engine may use."""
        return UTILISATION * self.card.memory

    def rate(self, prompt: int) -> Cost:
        """Return the completions a second of an engine, with prompts of so many tokens."""
        if self.given_rate:
            return Cost(self.given_rate, "given by --gpu-rate")
        slower = min(1.0, _ideal(MEASURED, MEASURED_PROMPT) / _ideal(self, prompt))
        value = GPU_RATE.value * slower * self.tensor
        if self._is_measured and prompt == MEASURED_PROMPT:
            return GPU_RATE
        served = f"of {self.model.name} on {self.card.name} after {prompt:,} tokens"
        if slower < 1:
            reached = GPU_RATE.value * _ideal(MEASURED, MEASURED_PROMPT)
            why = (
                f"{number(slower)} times those measured, as ideal times have it: prefill by operations, decode by bytes read. "
                f"Likely too few: the measured engine reached {reached:.0%} of its card's peaks, and larger ones reach more"
            )
        else:
            why = "no faster than measured, since most of the time is the launch of kernels"
        together = f"; {self.tensor} cards are {self.tensor} times as fast" if self.tensor > 1 else ""
        return Cost(
            value,
            f"assumed: {number(value)} completions a second {served}, {why}{together}; {GPU_RATE.basis}; `tabloop bench "
            "capacity` beside your engines has engine_completions_per_second for --gpu-rate",
        )

    @property
    def _is_measured(self) -> bool:
        own, measured = (replace(model.architecture, positions=1) for model in (self.model, MEASURED_MODEL))
        return own == measured and self.model.dtype == "bfloat16" and (self.card, self.tensor) == (MEASURED_CARD, 1)


MEASURED = Engine()
"""The engine whose rate was measured."""


def _ideal(engine: Engine, prompt: int) -> float:
    """Return the seconds of a completion on one card at its peaks, one of STREAMS at once; the engine's other cards count as more
    of the same."""
    model, card = engine.model, engine.card.name
    shape = model.architecture
    new, seen = prompt * (1 - SHARED), prompt * (1 + SHARED) / 2
    products = shape.parameters - shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    operations = new * (2 * products + 4 * shape.layers * shape.heads * shape.head * seen)
    read = model.weights / STREAMS + model.cache * (prompt + TOKENS / 2)
    peak = (FLOAT32_PEAKS if model.dtype == "float32" else PEAKS)[card]
    return operations / peak + TOKENS * read / BANDWIDTHS[card]


def read_model(directory: Path) -> Model:
    """Return a model by its config.json. Raises UnsupportedCheckpoint, which names --model."""
    try:
        config = architectures.read_config(directory)
        architecture = architectures.parse(config, str(directory))
        dtype = architectures.dtype(config, str(directory))
        if architecture.positions <= TOKENS:
            raise UnsupportedCheckpoint(
                f"{directory}: config.json: max_position_embeddings = {architecture.positions}, expected more than the {TOKENS} "
                "tokens that are sampled"
            )
        return Model(directory.resolve().name, architecture, dtype or "bfloat16", bool(dtype))
    except UnsupportedCheckpoint as error:
        raise UnsupportedCheckpoint(f"--model {error}: `{EXAMPLE} --model infra/base_model`") from None


def cards_of(settings: Settings) -> int:
    """Return the cards of an engine by the settings, one where they name none. Raises NotAnEngine: no whole number above 0."""
    found = settings.serving.engine_arguments.get("tensor_parallel_size", 1)
    if type(found) is not int or found < 1:
        raise NotAnEngine(
            f"serving.engine_arguments.tensor_parallel_size = {found!r}, expected a whole number above 0: `{EXAMPLE} --tensor 1`"
        )
    return found


def check(engine: Engine, prompt: int) -> None:
    """Raise NotAnEngine if the model cannot be divided over the engine's cards, or cannot read a prompt of so many tokens, or if
    the user gives a rate of less than LEAST_RATE."""
    model = engine.model
    if 0 < engine.given_rate < LEAST_RATE:
        raise NotAnEngine(
            f"--gpu-rate {engine.given_rate:g}: expected {LEAST_RATE:g} or more completions a second, or 0 for the rate that was "
            f"measured: `{EXAMPLE} --gpu-rate 40`"
        )
    if prompt > model.longest:
        raise NotAnEngine(
            f"--prompt {prompt}: expected at most {model.longest}, the {model.architecture.positions} positions of {model.name} "
            f"without {TOKENS} sampled tokens: `{EXAMPLE} --prompt {model.longest}`"
        )
    try:
        memory.check(model.architecture, Layout(tensor=engine.tensor))
    except ValueError as error:
        wanted = str(error).replace("train.tensor_parallel = ", "--tensor ")
        raise NotAnEngine(f"{wanted}: `{EXAMPLE} --tensor 1`") from None


def check_fits(engine: Engine, prompt: int) -> None:
    """Raise DoesNotFit, which names what would fit, unless the engine's cards hold it."""
    model = engine.model
    if (needed := sum(engine.needs(prompt))) <= engine.room:
        return
    weights, streams, beside = (f"{part / GB:.1f} GB" for part in engine.needs(prompt))
    ways = "; ".join([*_ways(engine, prompt), _trained_as_adapter(engine)])
    raise DoesNotFit(
        f"{model.name} does not fit {engine.card.name}: an engine needs {needed / GB:.1f} GB of each card ({weights} of weights, "
        f"{streams} of KV cache for {STREAMS} streams, {beside} beside them), and may use {engine.room / GB:.1f}. {ways}"
    )


def _ways(engine: Engine, prompt: int) -> Iterator[str]:
    """Yield the options with which an engine fits."""

    def fits(other: Engine) -> bool:
        try:
            check(other, prompt)
        except NotAnEngine:
            return False
        return sum(other.needs(prompt)) <= other.room

    for card in CARDS:
        if card.memory > engine.card.memory and fits(replace(engine, card=card)):
            yield f"`--gpu {card.name}`: a larger card"
    for size in TENSOR_SIZES:
        if size > engine.tensor and fits(replace(engine, tensor=size)):
            yield f"`--tensor {size}`: an engine on {size} cards by tensor parallelism"
            return


def _trained_as_adapter(engine: Engine) -> str:
    """Return the cards that adapters need."""
    found = fewest(engine.model.architecture, engine.card.memory, RANK)
    trained = f"train on {_cards(found.layout.processes)}" if found else f"do not fit {CARDS_OF_TRAINER[-1]} cards to train"
    return f"adapters (serving.adapters) need one such engine in place of one for each slot, and {trained}"


@cache
def fewest(model: Architecture, card: int, rank: int = 0) -> Proposal | None:
    """Return the trainer's proposal on the smallest number of cards of so many bytes; None if none of CARDS_OF_TRAINER fits.

    Args:
        rank: of the adapter that is trained; 0: the weights.
    """
    trained = Trained(adapter_rank=rank) if rank else EVERYTHING
    return next((found[0] for count in CARDS_OF_TRAINER if (found := propose(model, card, count, trained=trained))), None)


def rows(engine: Engine, prompt: int) -> Iterator[Row]:
    """Yield what a card holds of an engine and of the trainer, whatever the load."""
    model, card = engine.model, engine.card
    weights, streams, beside = engine.needs(prompt)
    each = (prompt + TOKENS) * model.cache / engine.tensor
    most = (engine.room - weights - beside) / each
    parts = f"{number(weights / GB)} GB of weights in {model.dtype}, {number(streams / GB)} GB of KV cache for {STREAMS} streams"
    unnamed = "" if model.named else "; assumed: bfloat16, since it names no dtype"
    yield Row(
        "engine: memory",
        f"{number((weights + streams + beside) / GB)} of {number(engine.room / GB)} GB of a card: {parts} "
        f"({number(model.cache / 1e3)} kB a token), {number(beside / GB)} GB beside them; room for {most:,.0f} streams",
        f"computed from config.json{unnamed}; {ENGINE_BYTES.basis}{_elsewhere(engine, 'H100')}; assumed: {UTILISATION:.0%} of a "
        "card",
    )
    yield Row(
        "adapters",
        f"{number(model.adapter / 1e6)} MB a version at rank {RANK}, of which an engine holds {HELD}",
        "computed from config.json; measured 2026-11-27 on an H200: 73.9 MB of 1.5B",
    )
    trained = {name: fewest(model.architecture, card.memory, rank) for name, rank in (("full weights", 0), ("an adapter", RANK))}
    yield Row(
        "trainer",
        "; ".join(f"{name}: {_planned(found)}" for name, found in trained.items()),
        f"computed as by `tabloop memory`; measured 2026-11-26 on an H100: four shapes take what is planned, within 1.4 %"
        f"{_elsewhere(engine, 'H100')}",
    )


def _elsewhere(engine: Engine, card: str) -> str:
    """Return that a figure which was measured for 1.5B on a card is taken for others."""
    same = engine.card.name == card and replace(engine, card=MEASURED_CARD)._is_measured
    return "" if same else f"; assumed: the same for {engine.model.name} on {engine.card.name}"


def _planned(found: Proposal | None) -> str:
    if not found:
        return f"not on {CARDS_OF_TRAINER[-1]} cards"
    of = found.memory
    stays = of.weights + of.masters + of.gradients + of.adam
    again = f", {found.means.recompute} recomputation" if found.means.recompute != "none" else ""
    layout = f"{_cards(found.layout.processes)} ({found.layout}{again})"
    return f"{layout}, {number(stays / GB)} GB each and micro-batches of {found.size.tokens:,} tokens"


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"{count} cards"


def adapters_rate(engine: Engine, prompt: int) -> Cost:
    """Return the completions a second of an engine that serves versions as adapters."""
    rate = engine.rate(prompt)
    other = "" if engine._is_measured else f"; assumed: the same for {engine.model.name} on {engine.card.name}"
    return Cost(rate.value * ADAPTERS.value, ADAPTERS.basis + other)
