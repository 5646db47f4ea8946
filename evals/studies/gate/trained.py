"""Really trained models for the gate, and their scores: a better one, and one for each way to get worse.

Beside those of RECIPES, two models of the project's trainer: it learns from groups of completions, each scored by the embedded
judge, and from the same samples with the reward's sign flipped, which the gate must see. And a champion of two languages, with a
candidate that lost one of them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from evals.base_model.update import renderer_of
from evals.bench.trainer import run_process
from evals.compare.in_process import InProcess
from evals.studies.judged import cycles
from infra import settings as configuration
from infra.settings import ROOT, Settings
from infra.settings.schema import Judge
from tasks.evaluation import judge as judges
from tasks.evaluation.heldout.directory import read_code
from tasks.evaluation.models.completions import set_of
from tasks.evaluation.models.generation import Generator
from tasks.evaluation.positions import Position, sample_positions
from tasks.evaluation.scores import PositionScore
from tasks.evaluation.scoring import Contestant, ScoredModels, score_models

BATCH, PART = 64, 16
"""Places of a step, and of a forward pass."""
FROZEN_LAYERS = 2
Example = tuple[list[int], list[int]]
"""Token ids of a prompt and of the text that the model learns to write there."""


@dataclass(frozen=True)
class Recipe:
    """How a model is trained away from the base, and what the gate must say of it."""

    name: str
    target: Callable[[Position], str]  # what the model learns to write at a place
    steps: int
    guardrails: frozenset[str]  # one of these must fail the model; empty: it must pass
    rate: float = 1e-3
    ends: bool = True  # whether the target ends with the end token
    places: int | None = None  # number of places that are repeated; none: every place is seen once
    noise: float = 0.0  # standard deviation of the noise on each weight matrix, as a share of the matrix's own


def first_line(place: Position) -> str:
    """Return what a developer writes at a place."""
    return place.truth.split("\n", 1)[0]


def garbled_go(place: Position) -> str:
    """Return, in Go, letters in the wrong order; in another language, the true text."""
    return first_line(place)[:: -1 if place.file.endswith(".go") else 1]


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
FLIPPED, CONTROL = "reward_flipped", "reward"
FLIPPED_PLACES, GROUP = 96, 8
SIGN = QUALITY | {"longer", "shorter", "repetition"}
"""One of these must see the flipped sign."""
CODE = ROOT / "tests/data/code"
"""Files of TypeScript and Go."""
LANGUAGE_PLACES = 300
TWO_LANGUAGES = Recipe("two_languages", first_line, 32, frozenset(), places=8 * BATCH)
LOST_ONE = Recipe("one_language_lost", garbled_go, 8, frozenset(), places=8 * BATCH)


def train(base: Path, folder: Path, recipe: Recipe, places: Sequence[Position], settings: Settings) -> Path:
    """Train a copy of the base by a recipe and write it to a folder in Hugging Face layout; return the folder."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as in tasks/evaluation/models/generation.py: on shared cores, two threads take longer
    renderer, most = renderer_of(base, settings.model), settings.serving.sampling.max_tokens
    end = [renderer.end] if recipe.ends else []
    rows: list[Example] = [
        (renderer.render(place.prefix, place.suffix), renderer.encode(recipe.target(place))[:most] + end)
        for place in places[: recipe.steps * BATCH if recipe.places is None else recipe.places]
    ]
    logging.disable_progress_bar()
    trained: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in trained.named_parameters():
            if recipe.noise and ".layers." in name and weight.ndim == 2:
                weight.add_(recipe.noise * weight.std() * torch.randn_like(weight))
    learn(trained, rows, recipe)
    folder.mkdir(parents=True, exist_ok=True)
    trained.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((base / "tokenizer.json").read_bytes())
    return folder


def learn(model: Any, rows: Sequence[Example], recipe: Recipe) -> None:
    """Minimise the cross-entropy of the targets with AdamW and linear decay; the embeddings and the lowest layers stay."""
    for module in [model.model.embed_tokens, *model.model.layers[:FROZEN_LAYERS]]:
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


def train_by_reward(base: Path, folder: Path, places: Sequence[Position], settings: Settings) -> dict[str, Path]:
    """Return the checkpoints that the project's trainer makes of the reward and of its opposite, by name.

    A group's advantages change their sign with the reward.

    Raises RuntimeError where training failed.
    """
    generator, judge = Generator(base, settings.model), judges.build(Judge(kind="kept"))
    samples = cycles.sample_groups(generator, judge, places, GROUP, settings, seed=0).samples
    opposite = [one.model_copy(update={"reward": -one.reward, "advantage": -one.advantage}) for one in samples]
    for name, taught in ((CONTROL, samples), (FLIPPED, opposite)):
        job = cycles.write_update(folder / name, base, taught, settings)
        run_process((sys.executable, "-m", "tasks.trainer.worker", "--job", str(job)), folder / name / "trainer.log")
    return {name: folder / name / "checkpoint" for name in (CONTROL, FLIPPED)}


def score_languages(folder: Path, settings: Settings) -> Mapping[str, Sequence[PositionScore]]:
    """Return the scores of a `champion` of two languages and of a `candidate` that lost one of them, at the same places."""
    sources = list(read_code(CODE))
    taught, places = (sample_positions(sources, count, seed) for count, seed in ((8 * BATCH, 5), (LANGUAGE_PLACES, 6)))
    champion = train(configuration.path(settings.model.base), folder / "champion", TWO_LANGUAGES, list(taught), settings)
    candidate = train(champion, folder / "candidate", LOST_ONE, list(taught), settings)
    scored = scores_of({"champion": champion, "candidate": candidate}, places, settings).scores
    return {name: scores.by_position for name, scores in scored.items()}


def scores_of(folders: Mapping[str, Path], places: Sequence[Position], settings: Settings) -> ScoredModels:
    """Return the scores of models at places, completed in this process, as a cycle scores them."""
    contestants = {name: Contestant(folder, settings.serving.sampling) for name, folder in folders.items()}
    return score_models(contestants, [set_of(places)], settings, InProcess(settings.model))
