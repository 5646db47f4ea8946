"""Runs completions with the tests of their benchmark, each in its own sandbox.

pass@1 is the share of places whose completion passes (Chen et al. 2021, "Evaluating Large Language Models Trained on Code",
section 2.1, with one sample for each problem).
"""

import secrets
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Literal

from infra.model.line_ends import normal
from infra.records import Case, HeldOutPlace, Program
from tasks.evaluation.sandbox.interpreter import Interpreter, checked, interpreters
from tasks.evaluation.sandbox.limits import Limits
from tasks.evaluation.sandbox.run import Outcome, SandboxRefused, run
from tasks.evaluation.sandbox.truncation import truncated

Runs = Literal["passed", "failed", "timeout", "not_run"]
"""failed: a wrong output, an error, or a limit; not_run: there are no tests, or no compiler of the language on this machine."""
COMPILER = "/usr/bin/g++"
COMPILE = ("/bin/sh", "-c", f"{COMPILER} -O1 -std=c++17 -o main main.cpp >&2 && cat main")
COMPILE_LIMITS = Limits(seconds=30.0, memory_mb=768, total_mb=4096, processes=16, disk_mb=64, output_mb=32)


def pass_at_1(
    places: Sequence[HeldOutPlace], completions: Sequence[str], limits: Limits | None = None, workers: int = 2
) -> tuple[Runs, ...]:
    """Run each place's tests with its completion, `workers` at a time, and return the results by place.

    Raises:
        SandboxRefused: this machine does not allow sandboxes, or one cannot run a program that surely passes.
    """
    allowed = limits or Limits()
    languages = {place.program.language for place in places if place.program}
    python = checked(allowed) if "py" in languages else None
    if "cpp" in languages and Path(COMPILER).exists():
        check_compiler(allowed)

    def one(place: HeldOutPlace, completion: str) -> Runs:
        if not place.program:
            return "not_run"
        return passes(place.program, cut(place, place.program, completion), allowed, python)

    with ThreadPoolExecutor(workers) as pool:
        return tuple(pool.map(one, places, completions))


def cut(place: HeldOutPlace, program: Program, completion: str) -> str:
    """Return the part of a completion that is run: all, or for SAFIM the part up to which the program is well formed."""
    if not program.truncated:
        return completion
    return truncated(completion, place.truth, program.before, program.after, program.language)


def check_compiler(limits: Limits) -> None:
    """Compile and run an empty program. Raises SandboxRefused: this is not possible in a sandbox."""
    compiled = run(COMPILE, {"main.cpp": b"int main() {}"}, COMPILE_LIMITS)
    outcome = run(("/work/main",), {"main": compiled.stdout}, limits) if compiled.succeeded else compiled
    if not outcome.succeeded:
        raise SandboxRefused(
            f"sandbox: {COMPILER} makes no program that runs in it: {outcome.said}; nothing was run. Install g++ with its "
            "libraries, or remove it: then the places in C++ are left out"
        )


def passes(program: Program, completion: str, limits: Limits, python: Interpreter | None = None) -> Runs:
    """Run a program with a completion on its cases, up to the first failure; `python`: the interpreter, else the first one."""
    source = program.before + completion + program.after
    match program.language:
        case "py":
            return _python(python or interpreters()[0], source, program.cases, limits)
        case "cpp" if Path(COMPILER).exists():
            return _cpp(source, program.cases, limits)
        case _:
            return "not_run"


def _python(python: Interpreter, source: str, cases: Sequence[Case], limits: Limits) -> Runs:
    """Run a Python program. It must reach its last line: a completion may end the process before the tests."""
    end = secrets.token_hex(16)
    source += f"\nimport sys\nsys.stdout.write({end!r})\n"
    for case in cases:
        outcome = python.run(source, limits, case.stdin)
        ended = outcome.stdout.endswith(end.encode())
        if not ended and not (case.outputs and outcome.succeeded):  # an output is compared wherever the program ends
            return "timeout" if outcome.ended == "timeout" else "failed"
        outcome = replace(outcome, stdout=outcome.stdout.removesuffix(end.encode()))
        if (result := _compared(outcome, case)) != "passed":
            return result
    return "passed"


def _cpp(source: str, cases: Sequence[Case], limits: Limits) -> Runs:
    """Compile a C++ program in a sandbox and run it in others."""
    compiled = run(COMPILE, {"main.cpp": source.encode(errors="surrogatepass")}, COMPILE_LIMITS)
    if not compiled.succeeded:
        return "failed"
    for case in cases:
        outcome = run(("/work/main",), {"main": compiled.stdout}, limits, stdin=case.stdin)
        if (result := _compared(outcome, case)) != "passed":
            return result
    return "passed"


def _compared(outcome: Outcome, case: Case) -> Runs:
    if outcome.ended == "timeout":
        return "timeout"
    written = _lines(outcome.stdout.decode(errors="replace"))
    right = not case.outputs or written in [_lines(output) for output in case.outputs]
    return "passed" if outcome.succeeded and right else "failed"


def _lines(text: str) -> list[str]:
    """Return a text's lines without white space at their ends, and without empty lines at its end."""
    return [line.rstrip() for line in normal(text).rstrip().split("\n")]
