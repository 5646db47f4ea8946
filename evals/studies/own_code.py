"""What a cycle of own code learns: a repository's candidate against the base on its held-out files, through the offline gate.

The samples, the update and the gate are those of `tabloop learn` (tasks/own_code); completions come from transformers in this
process, so that no stack is needed.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from evals.base_model import update
from evals.compare.in_process import InProcess
from infra import settings as configuration
from infra.redaction.redactor import Redactor
from infra.settings import Settings
from infra.storage.store import sha256
from tasks.evaluation.gate.verdict import gate_candidate
from tasks.evaluation.heldout import sets
from tasks.evaluation.heldout.build import build
from tasks.evaluation.models.base import weights_sha256
from tasks.evaluation.models.completions import set_of
from tasks.evaluation.scoring import Contestant, ScoredModels, score_models
from tasks.own_code import code, repository
from tasks.own_code.code import LearnedCode
from tasks.own_code.report import Report, gains
from tasks.trainer.job import CHECKPOINT_NAME
from tasks.trainer.run import write_job

RESULT, DONE = "result.json", "trained.sha256"
"""The reports, and the checksum of the inputs of an update that has ended: a call with the same ones does not train again."""


def study(
    settings: Settings,
    sources: Sequence[str],
    languages: Sequence[str],
    places: int,
    out: Path,
) -> list[dict[str, Any]]:
    """Learn from each repository alone, print its report and write result.json; return the reports.

    Args:
        languages: endings of files; empty: all.
        places: most positions to train on; 0: collect.max_samples.
        out: folder of clones, samples and checkpoints.

    Raises:
        NoCode: a source has no code of these languages.
    """
    found = []
    for source in sources:
        read = repository.read(source, languages, out / "clones")
        found.append(_learn(settings, read, places or settings.collect.max_samples, out / read.name))
        (out / RESULT).write_text(json.dumps(found, indent=2))
    return found


def _learn(settings: Settings, read: repository.Repository, count: int, folder: Path) -> dict[str, Any]:
    settings, base = code.training_settings(settings), configuration.path(settings.model.base)
    renderer = update.renderer_of(base, settings.model)
    learned = code.learn([read], [""], settings, renderer, Redactor(), "0", count)
    candidate = trained(learned.samples, base, settings, folder)
    scored, verdict = _scored(settings, learned, base, candidate)
    rows = {name: [asdict(row) for row in scores.by_position] for name, scores in scored.scores.items()}
    evaluation: Mapping[str, Any] = {"positions": rows["candidate"], "champion_positions": rows["champion"]}
    report = Report(read.name, learned.repositories, tuple(gains(evaluation)), verdict, None)
    print("\n".join(report.lines()))
    return report.values()


def trained(samples: bytes, base: Path, settings: Settings, folder: Path) -> Path:
    """Return the checkpoint of an update of the base on samples: the one in the folder, if it was made of these, or a new one.

    Raises TrainingFailed where the trainer failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, done = folder / "samples.parquet", folder / DONE
    job = write_job(folder, base, file, "0", settings.train)
    made_of = sha256([samples, job.read_bytes(), weights_sha256(base).encode()])
    if not done.exists() or done.read_text() != made_of:
        done.unlink(missing_ok=True)  # a call that is killed from here on leaves no checkpoint that counts
        file.write_bytes(samples)
        update.train(job, settings.train)
        done.write_text(made_of)
    return folder / CHECKPOINT_NAME


def _scored(settings: Settings, learned: LearnedCode, base: Path, candidate: Path) -> tuple[ScoredModels, str]:
    """Return the scores of both models on the settings' sets and on the held-out files, and the gate's verdict."""
    asked = [build(wanted, settings.evaluate) for wanted in settings.evaluate.sets if wanted.kind != "team"]
    places = [set_of([sets.position_of(place) for place in one.places], one.name) for one in (*asked, *learned.held_out)]
    sampling = settings.serving.sampling
    contestants = {"champion": Contestant(base, sampling), "candidate": Contestant(candidate, sampling)}
    scored = score_models(contestants, places, settings, InProcess(settings.model))
    ours, theirs = (scored.scores[name].by_position for name in ("candidate", "champion"))
    result = gate_candidate(ours, theirs, settings.evaluate.gate, judge_counts=scored.calibration.counts)
    return scored, f"{result.verdict}: {result.reason}"
