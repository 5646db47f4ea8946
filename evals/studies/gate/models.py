"""Really trained models for the gate: a better one, and one for each way to get worse."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from infra.model.fim import END, Renderer
from infra.settings.schema import Model
from tasks.evaluation.positions import Position

BATCH, PART = 64, 16
"""Places of a step, and of a forward pass."""
FROZEN_LAYERS = 2
Example = tuple[list[int], list[int]]
"""Token ids of a prompt and of the text that the model learns to write there."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained away from the base, and what the gate must say of it."""

    name: str
    target: Callable[[Position], str]
    """What the model learns to write at a place."""
    steps: int
    guardrails: frozenset[str]
    """One of these must fail the model; empty: it must pass."""
    rate: float = 1e-3
    ends: bool = True
    """Whether the target ends with the end token."""
    places: int | None = None
    """Number of places that are repeated; none: every place is seen once."""
    noise: float = 0.0
    """Standard deviation of the noise on each weight matrix, as a share of the matrix's own."""


def first_line(place: Position) -> str:
    """Return what a developer writes at a place."""
    return place.truth.split("\n", 1)[0]


QUALITY = frozenset({"exact", "edit_similarity", "matching_characters", "judged"})
RECIPES = (
    Recipe("settled_text", first_line, 40, frozenset()),
    Recipe("perturbed_weights", first_line, 0, QUALITY, noise=0.4),
    Recipe("empty", lambda _: "", 8, frozenset({"empty"})),
    Recipe("popular_line", lambda _: "return None", 8, frozenset({"variety"})),
    Recipe("longest_output", lambda place: f"{first_line(place)} " * 12, 12, frozenset({"longer"}), ends=False),
    Recipe("comments", lambda place: f"# {first_line(place)}", 8, frozenset({"comments"})),
    Recipe("memorised", first_line, 24, QUALITY, rate=4e-3, places=BATCH),
)


def train(base: Path, folder: Path, recipe: Recipe, places: Sequence[Position], model: Model, max_tokens: int) -> Path:
    """Train a copy of the base by a recipe and write it to a folder in Hugging Face layout; return the folder."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as in tasks/evaluation/models/generation.py: on shared cores, two threads take longer
    tokenizer: Any = Tokenizer.from_file(str(base / "tokenizer.json"))
    renderer = Renderer(tokenizer, model.fim_order, model.max_prefix_tokens, model.max_suffix_tokens)
    end: list[int] = [tokenizer.token_to_id(END)] if recipe.ends else []
    needed = recipe.steps * BATCH if recipe.places is None else recipe.places
    rows: list[Example] = [
        (
            renderer.render(place.prefix, place.suffix),
            tokenizer.encode(recipe.target(place), add_special_tokens=False).ids[:max_tokens] + end,
        )
        for place in places[:needed]
    ]
    logging.disable_progress_bar()
    trained = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if recipe.noise:
        perturb(trained, recipe.noise)
    learn(trained, rows, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    trained.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    return folder


@torch.no_grad()
def perturb(model: Any, share: float) -> None:
    """Add noise to every weight matrix of the layers."""
    for name, weight in model.named_parameters():
        if ".layers." in name and weight.ndim == 2:
            weight.add_(share * weight.std() * torch.randn_like(weight))


def learn(model: Any, rows: Sequence[Example], recipe: Recipe) -> None:
    """Minimise the cross-entropy of the targets with AdamW and linear decay; the embeddings and the lowest layers stay."""
    fixed = [model.model.embed_tokens, *model.model.layers[:FROZEN_LAYERS]]
    for module in fixed:
        module.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=recipe.rate, betas=(0.9, 0.95))
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate * (1 - 0.9 * step / recipe.steps)
        batch = [rows[i % len(rows)] for i in range(step * BATCH, (step + 1) * BATCH)]
        batch.sort(key=lambda row: len(row[0]) + len(row[1]))
        tokens = sum(len(target) for _, target in batch)
        for start in range(0, BATCH, PART):
            (loss(model, batch[start : start + PART]) / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def loss(model: Any, rows: Sequence[Example]) -> torch.Tensor:
    """Return the summed cross-entropy of the targets, in nats; logits are of the targets only."""
    longest = max(len(prompt) + len(target) for prompt, target in rows)
    ids = torch.tensor([p + t + [0] * (longest - len(p) - len(t)) for p, t in rows])  # B T, padded on the right
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    before = [hidden[i, len(p) - 1 : len(p) + len(t) - 1] for i, (p, t) in enumerate(rows)]
    logits = model.lm_head(torch.cat(before))  # all targets of the batch, V
    targets = torch.tensor([token for _, target in rows for token in target])
    return torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
