"""The sandbox: hostile programs are stopped and fail, and benchmarks' own solutions pass."""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from infra.records import Case, HeldOutPlace, Program
from infra.settings.schema import Evaluate, HeldOut
from tasks.evaluation.gate.measures import BY_NAME
from tasks.evaluation.heldout import sets
from tasks.evaluation.heldout.build import build
from tasks.evaluation.judge import Scored
from tasks.evaluation.sandbox import Limits, Outcome, SandboxRefused, pass_at_1, passes, run
from tasks.evaluation.sandbox.scored import with_passed
from tasks.evaluation.sandbox.truncation import truncated
from tasks.evaluation.scores import score_position, summarise

DATA = Path(__file__).resolve().parents[3] / "data/benchmarks"
LIMITS = Limits(seconds=10.0, memory_mb=256, processes=8, disk_mb=2, output_mb=1)
PYTHON = os.path.realpath(sys.executable)


def python(source: str, limits: Limits = LIMITS) -> Outcome:
    return run((PYTHON, "-I", "main.py"), {"main.py": source.encode()}, limits, readable=[sys.base_prefix])


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> None:
    try:
        assert python("print(1)").stdout == b"1\n"
    except SandboxRefused as error:
        pytest.skip(str(error))


HOSTILE = {
    "a fork bomb": ("import os\nwhile True:\n    os.fork()", b"Resource temporarily unavailable"),
    "a memory hog": ("held = []\nwhile True:\n    held.append(bytearray(10_000_000))", b"MemoryError"),
    "a socket to the network": ("import socket\nsocket.create_connection(('192.0.2.1', 80), 1)", b"unreachable"),
    "a socket to this machine": ("import socket\nsocket.create_connection(('127.0.0.1', 22), 1)", b"unreachable"),
    "a write to the system": ("open('/usr/planted', 'w')", b"Read-only file system"),
    "a write outside its folder": ("open('/planted', 'w')", b"Read-only file system"),
    "a write to a folder above": ("open('../planted', 'w')", b"Read-only file system"),
    "a file that is too large": ("file = open('a', 'wb')\nwhile True:\n    file.write(bytes(100_000))", b"File too large"),
    "too many files": ("for n in range(99):\n    open(f'a{n}', 'wb').write(bytes(500_000))", b"No space left"),
    "a flood of output": ("while True:\n    print('a' * 100_000)", b"File too large"),
    "a look at the machine's files": ("print(open('/etc/passwd').read())", b"No such file"),
    "a signal to the sandbox": ("import os\nos.kill(1, 9)", b"Operation not permitted"),
    "new namespaces": ("import ctypes, os\nif ctypes.CDLL(None).unshare(0x10000000):\n    raise OSError('refused')", b"refused"),
}


@pytest.mark.parametrize(("source", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_what_a_program_must_not_do_is_stopped_and_a_failure(source: str, words: bytes) -> None:
    outcome = python(source)
    assert not outcome.succeeded and words in outcome.stderr
    assert passes(Program(before="", after=""), source, LIMITS) == "failed"


@pytest.mark.parametrize("source", ["while True: pass", "import time\ntime.sleep(60)"])
@pytest.mark.timing(reason="a limit of 1 s must end within 20 s")
def test_an_endless_loop_ends_in_time_and_leaves_no_process(source: str) -> None:
    began = time.monotonic()
    assert passes(Program(before="", after=""), source, Limits(seconds=1.0)) in ("timeout", "failed")
    assert time.monotonic() - began < 20
    assert not [one for one in psutil.Process().children(recursive=True) if "inside.py" in " ".join(one.cmdline())]


def test_processes_that_a_program_leaves_behind_end_with_it() -> None:
    outcome = python("import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(987)\nprint('done')")
    assert outcome.stdout == b"done\n" and outcome.succeeded
    left = [process for process in psutil.process_iter(["cmdline"]) if "/work/main.py" in (process.info["cmdline"] or [])]
    assert left == []


def test_a_program_may_write_in_its_folder_start_threads_and_processes_and_read_its_input() -> None:
    source = (
        "import subprocess, sys, threading\n"
        "thread = threading.Thread(target=open('a', 'w').write, args=('x',))\nthread.start()\nthread.join()\n"
        "print(subprocess.run(['/bin/cat'], input='there', capture_output=True, text=True).stdout, sys.stdin.read())"
    )
    outcome = run((PYTHON, "-I", "main.py"), {"main.py": source.encode()}, LIMITS, stdin="in", readable=[sys.base_prefix])
    assert outcome.stdout == b"there in\n" and outcome.succeeded


def test_nothing_of_the_environment_reaches_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABLOOP_SERVING__TOKEN", "s3cr3t")
    assert b"s3cr3t" not in python("import os\nprint(dict(os.environ))").stdout


def benchmark(kind: str) -> tuple[HeldOutPlace, ...]:
    return build(HeldOut.model_validate({"name": "b", "kind": kind, "path": DATA / f"{kind}.jsonl"}), Evaluate()).places


@pytest.mark.parametrize("kind", ["humaneval_infilling", "safim"])
def test_canonical_solutions_pass_and_empty_completions_fail(kind: str) -> None:
    places = [place for place in benchmark(kind) if place.program]
    if not Path("/usr/bin/g++").exists():
        places = [place for place in places if place.language != "cpp"]
    assert set(pass_at_1(places, [place.truth for place in places])) == {"passed"}
    assert set(pass_at_1(places, [""] * len(places))) == {"failed"}


def test_places_without_tests_or_a_compiler_are_counted_apart() -> None:
    no_tests = benchmark("safim")[-1]
    unknown = no_tests.model_copy(update={"program": Program(language="cs", before="", after="")})
    passed = benchmark("humaneval_infilling")[0]
    results = pass_at_1([no_tests, unknown, passed], ["", "", passed.truth])
    assert results == ("not_run", "not_run", "passed")


@pytest.mark.parametrize("early", ["import os\nos._exit(0)", "raise SystemExit(0)", "import sys\nsys.exit()"])
def test_a_completion_that_ends_before_the_tests_fails(early: str) -> None:
    assert passes(Program(before="", after="\nassert False\n"), early, LIMITS) == "failed"


@pytest.mark.parametrize("end", ["exit()", "import sys; sys.exit()"])
def test_a_program_may_end_behind_its_output(end: str) -> None:
    program = Program(before="print(", after=f")\n{end}\n", cases=(Case(outputs=("3\n",)),))
    assert [passes(program, text, LIMITS) for text in ("3", "4")] == ["passed", "failed"]


def test_half_a_character_in_the_input_of_a_program_costs_no_test() -> None:
    program = Program(before="input()\nprint(", after=")\n", cases=(Case(stdin="\ud83d\n", outputs=("3\n",)),))
    assert passes(program, "3", LIMITS) in ("passed", "failed")


def test_an_output_passes_by_its_lines_and_a_wrong_one_fails() -> None:
    program = Program(before="print(", after=")\n", cases=(Case(outputs=("3\n", "3.0")),))
    assert [passes(program, text, LIMITS) for text in ("3", "'3  '", "3.0", "4", "")] == ["passed"] * 3 + ["failed"] * 2


def test_all_processes_together_have_a_bound_of_memory() -> None:
    source = (
        "import os, time\nchildren = 0\nfor _ in range(12):\n    if os.fork() == 0:\n"
        "        held = bytearray(100_000_000)\n        time.sleep(0.5)\n        os._exit(0)\n"
        "    children += 1\nprint('all', children)"
    )
    outcome = python(source, Limits(seconds=4.0, memory_mb=200, total_mb=600, processes=16, disk_mb=2, output_mb=1))
    assert not outcome.succeeded and b"all 12" not in outcome.stdout
    assert python("import os\nif os.fork() == 0:\n    os._exit(0)\nprint(os.wait()[1])", LIMITS).stdout == b"0\n"
    assert (Limits(memory_mb=200, total_mb=600).at_a_time, Limits(memory_mb=512, total_mb=100).at_a_time) == (3, 1)


@pytest.mark.parametrize(
    ("completion", "kept"),
    [
        ("c = a + b", "c = a + b"),
        ("c = a + b\n    print(c)\n    def (", "c = a + b\n    print(c)"),
        ("c = a + b) and more", "c = a + b"),
        ("c = (", "c = ("),
    ],
)
def test_safims_completions_are_cut_to_where_the_program_is_well_formed(completion: str, kept: str) -> None:
    before, after = "for _ in range(2):\n    a, b = map(int, input().split())\n    ", "\n    print(c)\n"
    assert truncated(completion, "c = a + b", before, after, "py") in (kept, "c =" if completion == "c = (" else kept)
    place = benchmark("safim")[0]
    assert place.program and place.program.truncated
    assert pass_at_1([place], [f"{place.truth})"]) == ("passed",), "the bracket is cut"
    whole = place.model_copy(update={"program": place.program.model_copy(update={"truncated": False})})
    assert pass_at_1([whole], [f"{place.truth})"]) == ("failed",)


def test_pass_at_1_is_a_metric_of_the_places_that_have_tests() -> None:
    places = benchmark("humaneval_infilling")
    rows = [score_position(sets.position_of(p), p.truth, Scored(10.0), set="he") for p in places]
    rows = [replace(row, id=p.id) for row, p in zip(rows, places, strict=True)]
    half = [replace(row, completion=row.completion if number % 2 else "") for number, row in enumerate(rows)]
    programs = {("he", place.id): place for place in places[:-1]}
    found = with_passed(summarise(tuple(half), "reference", 0.0), programs)
    passed = [row.measured.passed for row in found.by_position if row.measured]
    assert passed == [float(number % 2) for number in range(len(places) - 1)] + [None]
    assert BY_NAME["passed"].values(found.by_position)[:2].tolist() == [0.0, 1.0]


def test_a_machine_without_namespaces_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inside = tmp_path / "inside.py"
    text = (Path(run.__code__.co_filename).with_name("inside.py")).read_text()
    inside.write_text(text.replace('call("unshare", NEWNS', 'call("unshare", -1 | NEWNS'))
    monkeypatch.setattr(sys.modules[run.__module__], "INSIDE", inside)
    with pytest.raises(SandboxRefused, match=r"nothing was run.*user\.max_user_namespaces"):
        python("print(1)")
