"""The interpreter in the sandbox: environments whose Python is a copy run programs, and one that cannot gives no `passed`."""

import json
import os
import site
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from infra.records import HeldOutPlace, Program
from infra.settings import ROOT
from infra.stack import files
from tasks.evaluation.evaluate import evaluate_scores
from tasks.evaluation.sandbox import Limits, SandboxRefused, interpreter, pass_at_1, programs, run
from tasks.evaluation.sandbox.interpreter import Interpreter, checked
from tasks.evaluation.sandbox.scored import with_tests
from tests.tasks.evaluation.made_scores import scored_models, scores
from tests.tasks.evaluation.test_evaluate import SETTINGS

PLACE = HeldOutPlace(
    id="0", file="f.py", prefix="", suffix="", truth="x = 1", program=Program(before="", after="\nassert x == 1\n")
)


@pytest.fixture(scope="module", autouse=True)
def sandbox() -> None:
    try:
        run(("/bin/true",), {}, Limits())
    except SandboxRefused as error:
        pytest.skip(str(error))


PROBE = """
import json, sys
from infra.records import HeldOutPlace
from tasks.evaluation.sandbox import pass_at_1
place = HeldOutPlace.model_validate_json(sys.argv[1])
print(json.dumps([sys.executable, pass_at_1([place, place], ["x = 1", "x = 2"])]))
"""


def results(python: Path, *, within: Sequence[str] = (), **environment: str) -> list[str]:
    """Return what the interpreter's own process finds of a right and a wrong completion; `within`: a command that starts it."""
    paths = os.pathsep.join([str(ROOT), *site.getsitepackages()])
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": paths, **environment}
    command = [*within, str(python), "-c", PROBE, PLACE.model_dump_json()]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    executable, found = json.loads(done.stdout)
    assert Path(executable) == python
    return found


@pytest.fixture(scope="module", params=[0o022, files.PRIVATE], ids=["for all", "for its owner"])
def copied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds a copy of it."""
    folder = tmp_path_factory.mktemp("environment")
    command = [os.path.realpath(sys.executable), "-m", "venv", "--copies", "--without-pip", str(folder)]
    subprocess.run(command, check=True, umask=request.param)
    python = folder / "bin/python"
    assert not python.is_symlink()
    return python


def test_an_environment_whose_interpreter_is_a_copy_runs_programs(copied: Path) -> None:
    assert results(copied) == ["passed", "failed"]


def test_programs_run_where_files_are_made_for_their_owner_alone(copied: Path) -> None:
    with files.private():
        assert results(copied) == ["passed", "failed"]


CONTAINER = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c")


@pytest.fixture(scope="module")
def container() -> tuple[str, ...]:
    """A command that starts another as root of a container without root's rights."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True).returncode:
        pytest.skip("this machine allows no container without root's rights")
    return CONTAINER


@pytest.mark.parametrize("before", ["", "mount -t tmpfs -o noexec tmpfs $TMPDIR && "], ids=["as it is", "no programs in /tmp"])
def test_root_without_roots_rights_runs_programs(container: tuple[str, ...], tmp_path: Path, before: str) -> None:
    command = (*container, f'{before}exec "$0" "$@"')
    assert results(Path(sys.executable), within=command, TMPDIR=str(tmp_path)) == ["passed", "failed"]


def test_an_interpreter_behind_links_runs_programs(copied: Path, tmp_path: Path) -> None:
    (tmp_path / "prefix").symlink_to(sys.base_prefix)
    (tmp_path / "python").symlink_to(tmp_path / "prefix")
    assert results(tmp_path / "python/bin" / Path(os.path.realpath(sys.executable)).name) == ["passed", "failed"]
    (tmp_path / "environment").symlink_to(copied.parents[1])
    assert results(tmp_path / "environment/bin/python") == ["passed", "failed"]


def test_variables_of_python_do_not_reach_the_sandbox(copied: Path) -> None:
    assert results(copied, PYTHONHOME=sys.base_prefix) == ["passed", "failed"]


def test_a_copy_alone_runs_with_what_it_needs(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base's program is away, its libraries are not."""
    monkeypatch.setattr(sys, "_base_executable", "/nonexistent/python")
    monkeypatch.setattr(sys, "executable", str(copied))
    assert checked(Limits()).path == str(copied)


def broken(path: str) -> Interpreter:
    return Interpreter(path, (), {})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((), r"is no program"),
        ((broken("/nonexistent/python"),), r"cannot start /nonexistent/python: .*No such file"),
        ((broken("/bin/false"),), r"/bin/false exited, status 1"),
        ((broken("/bin/cat"),), r"/bin/cat exited, status 1, standard error [\"']/bin/cat: invalid option"),
    ],
)
def test_a_sandbox_that_cannot_run_python_gives_no_result(
    given: tuple[Interpreter, ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter, "interpreters", lambda: list(given))
    with pytest.raises(SandboxRefused, match=rf"no interpreter runs `print\(1\)` in it: .*{words}.*nothing was run.*env -i"):
        pass_at_1([PLACE], ["x = 1"])
    scored = scored_models(scores())
    row = scored.scores["candidate"].by_position[0]
    refused = with_tests(scored, {row.place: PLACE})
    assert refused.scores == scored.scores, "no place counts as passed or failed"
    assert "no interpreter runs" in refused.untested[0]
    assert refused.untested[0] in evaluate_scores(refused, SETTINGS).left_out


def test_an_interpreter_that_works_is_found_behind_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    working = interpreter.interpreters()
    monkeypatch.setattr(interpreter, "interpreters", lambda: [broken("/bin/false"), *working])
    assert pass_at_1([PLACE], ["x = 1"]) == ("passed",)


def test_a_library_that_roots_sandbox_cannot_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("only root's sandboxes run as another user")
    library = tmp_path / "lib"
    library.mkdir(mode=0o700)
    needs = Interpreter("/bin/false", (str(library),), {})
    monkeypatch.setattr(interpreter, "interpreters", lambda: [needs])
    with pytest.raises(SandboxRefused, match=rf"status 1, .*{library} is readable by its owner.*chmod -R go\+rX {library}\)"):
        checked(Limits())


def test_limits_in_which_no_interpreter_starts_are_refused() -> None:
    with pytest.raises(SandboxRefused, match=r"no interpreter runs"):
        pass_at_1([PLACE], ["x = 1"], Limits(memory_mb=4))


def test_a_compiler_that_makes_no_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(language="cpp", before="int main() {", after="}")
    monkeypatch.setattr(programs, "COMPILER", "/bin/ls")
    monkeypatch.setattr(programs, "COMPILE", ("/bin/sh", "-c", "echo no cc1plus >&2; exit 1"))
    with pytest.raises(SandboxRefused, match=r"makes no program.*status 1, standard error 'no cc1plus'.*Install g\+\+"):
        pass_at_1([PLACE.model_copy(update={"program": program})], [""])


def test_a_program_that_says_it_did_not_start_is_a_failure() -> None:
    """The pipe on which the sandbox reports is closed to the program."""
    source = (
        "import os\nfor number in range(3, 64):\n    try:\n        os.write(number, b'unstarted me\\n')\n"
        "    except OSError:\n        pass"
    )
    assert checked(Limits()).run(source, Limits()).succeeded
    assert pass_at_1([PLACE], [source]) == ("failed",)
