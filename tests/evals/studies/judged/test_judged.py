"""The judge as the user: places, accepts, the table, and the command at a tiny size with the shipped model."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from evals.studies.judged import cycles
from evals.studies.judged.run import RESULT, as_json, rows_of
from evals.studies.judged.settings import Judged, StudySettings, load, same
from evals.studies.judged.split import TooFewPlaces, split_of
from infra.cli import main
from infra.settings import SettingsError
from tasks.evaluation.judge import Failed, Item, Judgement, KeptJudge
from tasks.evaluation.models.base import SampledCompletion
from tasks.evaluation.positions import Position

PUBLISHED = Path(cycles.__file__).with_name("judge_user.toml")
FIM = Path(__file__).resolve().parents[3] / "data/benchmarks/code_fim.jsonl"
PLACES = [Position(f"{n}.py", 0, f"x_{n} = ", "\n", f"sum(values, {n})") for n in range(6)]


class Fixed:
    """A policy whose completion at a place is given."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def sample(self, contexts, max_tokens, temperature, seed, *, whole=False):
        return [SampledCompletion((1, 2), (5, 6), (-0.5, 0.001), text) for text in self.texts]


class Careful(KeptJudge):
    """A judge that fails on one place."""

    def score(self, items: Sequence[Item]) -> list[Judgement]:
        return [
            Failed("garbage", "") if item.prefix == "x_5 = " else one
            for item, one in zip(items, super().score(items), strict=True)
        ]


def test_a_completion_is_accepted_from_the_threshold_on_and_a_failure_is_no_rejection() -> None:
    texts = ["sum(values, 0)", "sum(values, 9)", "print", "", "  ", "sum(values, 5)"]
    settings = StudySettings(judged=Judged(threshold=9.0))
    taught = cycles.sample_accepts(cast(Any, Fixed(texts)), Careful(), PLACES, settings, "v1", 1)
    assert [s.outcome for s in taught.samples] == ["accepted", "rejected", "rejected", "nothing", "nothing"]
    assert [(s.shown_characters, s.accepted_characters) for s in taught.samples[:2]] == [(14, 14), (14, 0)]
    assert taught.failed == {"garbage": 1} and all(s.logprobs == (-0.5, 0.0) and s.policy_version == "v1" for s in taught.samples)
    assert taught.samples[0].reward == settings.reward.accepted and taught.samples[1].reward == settings.reward.rejected
    assert taught.samples[0].advantage > 0 > taught.samples[1].advantage
    lenient = cycles.sample_accepts(
        cast(Any, Fixed(texts)), Careful(), PLACES, StudySettings(judged=Judged(threshold=1.0)), "v1", 1
    )
    assert [s.outcome for s in lenient.samples][:3] == ["accepted", "accepted", "rejected"]


def rows_file(folder: Path, count: int) -> Path:
    rows = [
        {
            "prefix": f"def name_{n}(values):\n    total_{n} = ",
            "middle": f"sum(values) + offset_{n}.size({n})" if n % 5 else "x",
            "suffix": f"\n    return total_{n}\n",
            "lang": "python" if n % 4 else "go",
            "file_path": f"src/file_{n // 3}.{'py' if n % 4 else 'go'}",
        }
        for n in range(count)
    ]
    (folder / "fim.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "fim.jsonl"


def test_training_and_test_places_are_apart_by_file_long_enough_and_of_the_languages(tmp_path: Path) -> None:
    settings = Judged(file=rows_file(tmp_path, 200), train_places=60, test_places=20)
    found = split_of(settings)
    assert (len(found.train), len(found.test)) == (60, 20) and split_of(settings) == found
    assert not {p.file for p in found.train} & {p.file for p in found.test}
    assert all(len("".join(p.truth.split())) >= settings.min_truth and p.language == "py" for p in (*found.train, *found.test))
    assert found.left_out["short"] > 0 and found.left_out["other_language"] == 50
    with pytest.raises(TooFewPlaces, match=r"judged\.train_places = 500: found"):
        split_of(settings.model_copy(update={"train_places": 500}))
    rlinf = Judged(file=FIM.with_name("rlinf.jsonl"), languages=(), train_places=1, test_places=2, min_truth=1)
    with pytest.raises(TooFewPlaces):
        split_of(rlinf.model_copy(update={"train_places": 10_000}))


def test_a_test_place_whose_text_is_trained_on_is_left_out(tmp_path: Path) -> None:
    file = rows_file(tmp_path, 200)
    found = split_of(Judged(file=file, train_places=60, test_places=20))
    row = {"prefix": found.train[0].prefix, "middle": found.train[0].truth, "suffix": found.train[0].suffix, "lang": "python"}
    with file.open("a") as lines:  # copies of one training place under the names of test files
        lines.writelines(f"\n{json.dumps(row | {'file_path': p.file})}" for p in found.test)
    copied = split_of(Judged(file=file, train_places=60, test_places=20))
    assert copied.left_out["trained_on"] > 0 and found.train[0].truth not in {p.truth for p in copied.test}


def test_the_cycles_pass_over_all_places_as_often_as_asked_for() -> None:
    assert [len(part) for part in cycles.parts_of(PLACES, 2, 1)] == [3, 3]
    thrice = cycles.parts_of(PLACES, 4, 3)
    assert [len(part) for part in thrice] == [5, 5, 5, 3] and [p for part in thrice for p in part] == PLACES * 3


def test_the_table_compares_with_the_first_model_where_both_have_a_score() -> None:
    places = [Position(f"{n}.py", 0, "", "", "x") for n in range(40)]
    base = np.array([float(n % 10) for n in range(40)])
    better = np.where(np.arange(40) % 4 == 0, np.nan, base + 1)
    first, second = rows_of({"base": base, "ours": better}, places, 6.0)
    assert (first.change, first.failed, first.accepted) == (None, 0, 0.4) and first.score.estimate == pytest.approx(base.mean())
    assert second.change and (second.change.estimate, second.change.low, second.failed) == (
        pytest.approx(1),
        pytest.approx(1),
        10,
    )
    assert second.score.places == 30


def test_a_result_of_a_judge_that_failed_everywhere_is_json() -> None:
    places = [Position(f"{n}.py", 0, "", "", "x") for n in range(4)]
    rows = rows_of({"base": np.full(4, 5.0), "ours": np.full(4, np.nan)}, places, 6.0)
    unknown: list[str] = []
    read = json.loads(as_json({"rows": [asdict(row) for row in rows]}), parse_constant=unknown.append)
    assert not unknown and read["rows"][1]["accepted"] is None and read["rows"][1]["failed"] == 4
    assert read["rows"][0]["score"]["estimate"] == 5.0


def test_the_published_experiment_is_a_settings_file() -> None:
    settings = load(PUBLISHED, {"TABLOOP_STACK__STATE": "/nowhere"})
    judged, train = settings.judged, settings.train
    assert (judged.train_places, judged.test_places, judged.languages, judged.group) == (3000, 1000, ("py",), 8)
    assert (train.learning_rate, train.precision, train.kl_weight) == (2e-6, "bfloat16", 0.0)
    assert settings.model.base.name == "Qwen2.5-Coder-1.5B" and [p.name.split("-")[-1] for p in judged.models] == [
        "3B",
        "7B",
        "14B",
        "32B",
    ]
    assert not same(settings.evaluate.judge, judged.judge)


def test_a_judge_that_rewards_and_scores_is_refused(tmp_path: Path) -> None:
    (tmp_path / "same.toml").write_text('[judged.judge]\nkind = "kept"\n[evaluate.judge]\nkind = "kept"\n')
    with pytest.raises(SettingsError, match="are both"):
        load(tmp_path / "same.toml", {"TABLOOP_STACK__STATE": "/nowhere"})


@pytest.mark.long(reason="a whole small study, with two updates")
@pytest.mark.stack
def test_the_command_trains_scores_and_prints_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"TRAIN_PLACES": "24", "TEST_PLACES": "10", "CYCLES": "1", "GROUP": "4", "THRESHOLD": "1"}
    for name, value in given.items():
        monkeypatch.setenv(f"TABLOOP_JUDGED__{name}", value)
    monkeypatch.setenv("TABLOOP_TRAIN__PROCESSES", "1")
    assert main(["study", "judged", "--out", str(tmp_path)]) == 0
    output = capsys.readouterr().out
    assert "24 training and 10 test places" in output and "Judge reference at 10 test places" in output
    result = json.loads((tmp_path / RESULT).read_text())
    assert [row["model"] for row in result["rows"]] == ["base", "ours after 1 cycles", "GRPO after 1 cycles"]
    assert all(0 <= row["score"]["estimate"] <= 10 and row["failed"] == 0 for row in result["rows"])
    assert len(result["rewards"]["ours"]) == 1 and (tmp_path / "ours/1/checkpoint/model.safetensors").exists()
