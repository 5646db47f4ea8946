"""The places that the base model is tuned to, and the choice of its temperature."""

import json

from tokenizers import Tokenizer

from evals.base_model import tuning
from evals.base_model.tuning import Score
from infra import settings
from infra.model.fim import END, Renderer
from tasks.evaluation.positions import Code, Source

BASE = settings.path(settings.load().model.base)
TOKENIZER = Tokenizer.from_file(str(BASE / "tokenizer.json"))
RENDERER = Renderer(TOKENIZER, "spm", 96, 24)
TEXT = "\n".join(f"def function_{n}(value):\n    return value * {n} + offset_{n}\n" for n in range(40))


def test_a_place_asks_for_what_is_written_there_and_nothing_of_it_is_in_the_prompt() -> None:
    end = TOKENIZER.token_to_id(END)
    looks = tuning.pauses(Code([Source("a.py", TEXT)]), 40, seed=1)
    samples = tuning.places(looks, RENDERER, 24)
    for look, sample in zip(looks, samples, strict=True):
        truth, tokens = look.position.truth, sample.settled_token_ids
        ended = tokens[-1] == end
        written = TOKENIZER.decode(tokens[: len(tokens) - ended])
        assert truth == written if ended else truth.startswith(written)
        assert ended or len(tokens) == 24
        assert not sample.token_ids and sample.outcome == "unjudged"


def test_the_files_for_the_temperature_are_not_tuned_to() -> None:
    names = [f"package/module_{number}.py" for number in range(500)]
    kept = [name for name in names if tuning._is_kept_back(Source(name, ""))]
    assert 60 < len(kept) < 140


def test_the_best_temperature_is_that_of_most_accepts() -> None:
    scores = [Score(0.1, 0.16, 1.0), Score(0.3, 0.17, 0.9), Score(0.5, 0.17, 1.1), Score(0.8, 0.12, 2.0)]
    assert tuning.best(scores).temperature == 0.5


def test_the_shipped_base_says_its_best_temperature() -> None:
    assert json.loads((BASE / "generation_config.json").read_text())["temperature"] in tuning.TEMPERATURES
