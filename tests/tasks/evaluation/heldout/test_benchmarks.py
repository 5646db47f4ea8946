"""Rows of public benchmarks, written by hand in their formats."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.records import Case, HeldOutPlace
from infra.settings.schema import Evaluate, HeldOut
from tasks.evaluation.heldout import benchmarks
from tasks.evaluation.heldout.benchmarks import Malformed
from tasks.evaluation.heldout.build import build

DATA = Path(__file__).resolve().parents[3] / "data/benchmarks"


def places(kind: str, file: Path | None = None, **fields: Any) -> tuple[HeldOutPlace, ...]:
    path = file or DATA / f"{kind}.jsonl"
    return build(HeldOut.model_validate({"name": "b", "kind": kind, "path": path, **fields}), Evaluate()).places


def test_code_fim_in_json_lines_and_parquet_with_short_middles_dropped(tmp_path: Path) -> None:
    found = places("code_fim")
    assert [(p.file, p.language, p.truth) for p in found] == [
        ("stats/mean.py", "py", "sum(values)"),
        ("src/twice.ts", "ts", "n * 2;"),
        ("max.go", "go", "\treturn b\n"),
    ]
    assert found[0].prefix.endswith("total = ") and found[0].suffix.startswith("\n    return total")
    rows = [json.loads(line) for line in (DATA / "code_fim.jsonl").read_text().splitlines()]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl.gz").write_bytes(gzip.compress((DATA / "code_fim.jsonl").read_bytes()))
    assert places("code_fim", tmp_path / "rows.parquet") == places("code_fim", tmp_path / "rows.jsonl.gz") == found


def test_rlinfs_rows_are_parsed_from_their_prompt() -> None:
    found = places("code_fim", DATA / "rlinf.jsonl")
    assert [(p.prefix, p.truth, p.suffix) for p in found] == [
        ("def area(w, h):\n    return ", "w * h", "\n\nprint(area(2, 3))\n"),
        ("names = [", "user.name", " for user in users]\n"),
    ]
    assert len({place.file for place in found}) == 2


def test_a_humaneval_place_is_run_with_its_tests_and_clustered_by_its_problem() -> None:
    found = places("humaneval_infilling")
    assert len(found) == 4 and found[0].file == found[1].file == "SingleLineInfilling/HumanEval/900"
    for place in found:
        assert place.program and place.program.cases == (Case(),)
        assert place.program.before == place.prefix and place.program.after.startswith(place.suffix)
    assert found[0].program and found[0].program.after.endswith("\ncheck(ordered)\n")


def test_a_safim_place_has_no_hole_in_its_context_and_its_cases() -> None:
    block, control, cpp, api = places("safim")
    for place in (block, control, cpp, api):
        assert "TODO" not in place.prefix + place.suffix and "{{completion}}" not in place.prefix + place.suffix
    assert block.prefix.endswith("input().split())\n    ") and block.suffix == "\n    print(c)\n"
    assert block.program and block.program.cases[0] == Case(stdin="2\n1 2\n5 -5\n", outputs=("3\n0",))
    assert control.program and control.program.cases[1].outputs == ("7", "7.0")
    assert (cpp.language, api.program, api.truth) == ("cpp", None, "np.ones((n, n))")


def test_crosscodeeval_puts_other_files_before_the_prompt() -> None:
    label, reader = places("crosscodeeval")
    assert label.prefix.startswith("// the below code fragment") and label.prefix.endswith("return `${")
    assert (label.project, label.file, label.language) == ("shop-web", "src/label.ts", "ts")
    assert (reader.id, reader.truth, reader.suffix) == ("project_cc_python/2", "self.source.read()", "\n")


def test_a_set_takes_the_places_asked_for_and_counts_the_others() -> None:
    path = DATA / "code_fim.jsonl"
    found = benchmarks.places(HeldOut(name="b", kind="code_fim", path=path, places=2), path)
    assert len(found.places) == 2 and found.left_out == {"other_language": 0, "short": 1, "more_than_asked_for": 1}


@pytest.mark.parametrize(
    ("kind", "row", "words"),
    [
        ("code_fim", {"prefix": "a", "lang": "go"}, ["row 1", "code_fim", "'prompt'", "['lang', 'prefix']"]),
        ("safim", {"task_id": "1", "lang": "python", "prompt": "no hole", "ground_truth": ""}, ["prompt has no hole"]),
        ("humaneval_infilling", {"task_id": "1"}, ["KeyError"]),
        ("humaneval_infilling", {"task_id": None}, ["row 1", "AttributeError", "['task_id']"]),
        ("code_fim", {"prompt": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "solutions": []}, ["row 1", "IndexError"]),
    ],
)
def test_a_row_of_another_format_is_named_with_its_fields(
    kind: str, row: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with pytest.raises(Malformed) as error:
        places(kind, tmp_path / "rows.jsonl")
    assert all(word in str(error.value) for word in words)


def test_a_missing_or_broken_file_is_an_error(tmp_path: Path) -> None:
    broken = {"rows.jsonl": b"{", "null.jsonl": b"null", "deep.jsonl": b"[" * 100_000, "cut.jsonl.gz": gzip.compress(b"{}")[:-9]}
    for name, body in broken.items():
        (tmp_path / name).write_bytes(body)
    for name in (*broken, "missing.jsonl", "missing.parquet"):
        with pytest.raises(Malformed, match=r"JSON lines or \.parquet"):
            places("code_fim", tmp_path / name)
