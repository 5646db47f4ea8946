"""Public benchmarks from local files, in their published formats; nothing is downloaded.

code_fim             code-fim-v2: `prefix`, `middle`, `suffix`, `lang`, `file_path`; RLinf's rows: `prompt`, `solutions`
humaneval_infilling  Bavarian et al. 2022: `task_id`, `prompt`, `suffix`, `canonical_solution`, `test`, `entry_point`; run
safim                Gong et al. 2024: `task_id`, `lang`, `prompt` with a hole, `eval_prompt`, `ground_truth`, `unit_tests`; run
crosscodeeval        Ding et al. 2023: `prompt`, `groundtruth`, `right_context`, `crossfile_context`, `metadata`
"""

import gzip
import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from infra.model.fim import parse_prompt
from infra.model.language import language
from infra.records import Case, HeldOutPlace, Program
from infra.settings.evaluation import HeldOut
from tasks.evaluation.heldout.directory import LEAST_TRUTH, spoken
from tasks.evaluation.heldout.sets import Places

Row = Mapping[str, Any]
HOLES = ("{{completion}}", "# TODO: Your code here", "/* TODO: Your code here */")
"""Marks of SAFIM's hole, in `eval_prompt` and in `prompt` by language; the first that a text holds counts."""
EXTENSIONS = {"python": "py", "csharp": "cs", "typescript": "ts", "javascript": "js", "rust": "rs"}
"""Extensions of the languages that benchmarks name, so that all sets name a language the same."""


class Malformed(ValueError):
    """A benchmark's file does not have its format."""


def places(wanted: HeldOut, file: Path) -> Places:
    """Return the places of a benchmark's file, in its order; the first `places` of them that are long enough, 0: all.

    Raises:
        Malformed: the file is missing, or a row lacks a field.
    """
    read = {
        "code_fim": code_fim,
        "humaneval_infilling": humaneval_infilling,
        "safim": safim,
        "crosscodeeval": crosscodeeval,
    }[wanted.kind]
    every = [_place(read, row, number, wanted, file) for number, row in enumerate(rows(file), 1)]
    found = [place for place in every if spoken(place.language, wanted.languages)]
    # A benchmark that runs its tests keeps its short places.
    long = [place for place in found if place.program or len(place.truth.strip()) >= LEAST_TRUTH]
    taken = long[: wanted.places or None]
    left_out = Counter(
        {
            "other_language": len(every) - len(found),
            "short": len(found) - len(long),
            "more_than_asked_for": len(long) - len(taken),
        }
    )
    return Places(wanted.name, tuple(taken), left_out)


def rows(file: Path) -> list[Row]:
    """Return the rows of a file of JSON lines (also .gz) or Parquet."""
    try:
        if file.suffix == ".parquet":
            return list(pq.read_table(file).to_pylist())
        text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        found = [json.loads(line) for line in text.split(b"\n") if line.strip()]
        if other := [number for number, row in enumerate(found, 1) if not isinstance(row, dict)]:
            raise ValueError(f"row {other[0]} is no object")
        return found
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise Malformed(f"{file}: {error}; expected a readable file of JSON lines or .parquet") from error


def _place(read: Callable[[Row, int], HeldOutPlace], row: Row, number: int, wanted: HeldOut, file: Path) -> HeldOutPlace:
    try:
        return read(row, number)
    except (LookupError, ValueError, TypeError, AttributeError) as error:
        raise Malformed(
            f"evaluate.sets, set {wanted.name!r}: row {number} of {file} is not of {wanted.kind} "
            f"({type(error).__name__}: {error}); it has the fields {sorted(row)}. expected those of infra/docs/how/held-out.md"
        ) from error


def code_fim(row: Row, number: int) -> HeldOutPlace:
    """Return a row of code-fim-v2, or of RLinf's split of it, whose prompt holds FIM markers."""
    if "middle" in row:
        prefix, truth, suffix = row["prefix"], row["middle"], row["suffix"]
    else:
        context = parse_prompt(row["prompt"])
        prefix, suffix, solutions = context.prefix, context.suffix, row["solutions"]
        truth = solutions if isinstance(solutions, str) else solutions[0]
    path = row.get("file_path") or ""
    return HeldOutPlace(
        id=str(number),
        file=path or _digest(prefix + truth + suffix),
        language=_language(path, row.get("lang") or ""),
        prefix=prefix,
        suffix=suffix,
        truth=truth,
    )


def humaneval_infilling(row: Row, number: int) -> HeldOutPlace:
    """Return a row of HumanEval-Infilling; its tests check the function `entry_point`."""
    task = row["task_id"]
    return HeldOutPlace(
        id=task,
        # "SingleLineInfilling/HumanEval/0/L0": places of one problem are no independent samples.
        file="/".join(task.split("/")[:3]),
        language="py",
        prefix=row["prompt"],
        suffix=row["suffix"],
        truth=row["canonical_solution"],
        program=Program(
            language="py", before=row["prompt"], after=f"{row['suffix']}\n{row['test']}\ncheck({row['entry_point']})\n"
        ),
    )


def safim(row: Row, number: int) -> HeldOutPlace:
    """Return a row of SAFIM. Rows without unit tests (API calls) are compared only."""
    prefix, suffix = _around_hole(row["prompt"])
    name = _language(name=row["lang"])
    tests = row.get("unit_tests") or []
    tests = json.loads(tests) if isinstance(tests, str) else tests
    program = None
    if tests:
        before, after = _around_hole(row["eval_prompt"])
        cases = tuple(Case(stdin=test["input"], outputs=_outputs(test["output"])) for test in tests)
        program = Program(language=name, before=before, after=after, cases=cases, truncated=True)
    return HeldOutPlace(
        id=row["task_id"],
        file=row["task_id"].rsplit("_", 1)[0],
        language=name,
        prefix=prefix,
        suffix=suffix,
        truth=row["ground_truth"],
        program=program,
    )


def crosscodeeval(row: Row, number: int) -> HeldOutPlace:
    """Return a row of CrossCodeEval; code of other files stands before the prompt, as in the published runs."""
    about = row.get("metadata") or {}
    across = row.get("crossfile_context") or {}
    text = across if isinstance(across, str) else across.get("text", "")
    return HeldOutPlace(
        id=about.get("task_id") or str(number),
        file=about.get("file") or _digest(row["prompt"]),
        project=about.get("repository") or "",
        language=_language(about.get("file") or ""),
        prefix=text + row["prompt"],
        suffix=row.get("right_context") or "",
        truth=row["groundtruth"],
    )


def _around_hole(prompt: str) -> tuple[str, str]:
    for hole in HOLES:
        if prompt.count(hole) == 1:
            before, after = prompt.split(hole)
            return before, after
    raise ValueError(f"prompt has no hole, or several; expected one of {HOLES} once")


def _outputs(outputs: str | Sequence[str]) -> tuple[str, ...]:
    return (outputs,) if isinstance(outputs, str) else tuple(outputs)


def _language(path: str = "", name: str = "") -> str:
    found = language(path, name)
    return EXTENSIONS.get(found, found)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
