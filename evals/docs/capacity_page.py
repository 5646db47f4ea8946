"""The needs of teams of five sizes, and models on cards (tasks/experiments/planning/capacity.py, engine.py)."""

from collections.abc import Iterator
from functools import partial

from evals.docs.schema import INTROS, table
from infra.model import architectures
from infra.settings import Settings
from tasks.experiments.planning import engine as engines
from tasks.experiments.planning.capacity import Load, capacity
from tasks.experiments.planning.cards import CARDS, Card
from tasks.experiments.planning.costs import number
from tasks.experiments.planning.engine import MEASURED_MODEL, TENSOR_SIZES, Engine, Model

SIZES = {"100 a day": Load(1e2), "1,000": Load(1e3), "10,000": Load(1e4), "1M": Load(1e6, 24.0), "400M": Load(4e8, 24.0)}
"""Loads by the heading of their column."""
COMMON = {"model_type": "qwen2", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6}
SHAPES = {
    "0.5B": {
        **{"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
        **{"num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    },
    "7B": {
        **{"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
        **{"num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
    },
    "32B": {
        **{"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40},
        **{"num_key_value_heads": 8, "vocab_size": 152064, "tie_word_embeddings": False},
    },
}
"""config.json of Qwen2.5-Coder, as published, of the sizes that were not measured."""


def page() -> str:
    found = [capacity(load, Settings()) for load in SIZES.values()]
    parts = zip(*(each.rows for each in found), strict=True)
    rows = [(rows[0].part, *(row.needs for row in rows)) for rows in parts]
    ends = [f"{each.first.part}: {number(each.first.used)} times what it may use. {each.do}" for each in found]
    needs = table(("", *SIZES), [*rows, ("nearest to its limit", *ends)])
    known = table(("", "how it is known"), [(row.part, row.basis) for row in found[0].rows])
    fitting = table(("model", "card", "cards of an engine", *PARTS), list(_on_cards()))
    return f"{INTROS['capacity']}{needs}\n## How it is known\n\n{known}\n{INTROS['capacity of cards']}{fitting}"


PARTS = ("engine: memory", "completions a second, with adapters", "trainer")
"""Headings of the needs of a model on a card."""


def _on_cards() -> Iterator[tuple[str, ...]]:
    """Yield a row for each model on each card that was measured, with the least cards on which an engine fits."""
    shapes = {name: Model(name, architectures.parse(COMMON | shape, name)) for name, shape in SHAPES.items()}
    models = [shapes["0.5B"], MEASURED_MODEL, shapes["7B"], shapes["32B"]]
    prompt = Load(1.0).prompt
    for engine in (_fitting(model, card, prompt) for model in models for card in CARDS):
        rows = {row.part: row.needs for row in engines.rows(engine, prompt)}
        merged, adapters = (number(rate(engine, prompt).value) for rate in (Engine.rate, engines.adapters_rate))
        yield engine.model.name, engine.card.name, str(engine.tensor), rows[PARTS[0]], f"{merged}, {adapters}", rows[PARTS[2]]


def _fitting(model: Model, card: Card, prompt: int) -> Engine:
    """Return an engine on the least cards that hold it."""
    several = map(partial(Engine, model, card), (1, *TENSOR_SIZES))
    return next(engine for engine in several if sum(engine.needs(prompt)) <= engine.room)
