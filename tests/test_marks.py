"""A failed test runs again, and one is left to `make test-long`, only if its mark gives the reason."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from infra.settings import ROOT
from tests.marks import rerun_timing_tests

CONFTEST = """
from tests.marks import add_long_option, choose_long_or_others, rerun_timing_tests

def pytest_addoption(parser):
    add_long_option(parser)

def pytest_collection_modifyitems(config, items):
    choose_long_or_others(config, items)
    rerun_timing_tests(items)
"""
FAILS_ONCE = """
import pathlib, pytest
{mark}
def test_fails_once():
    seen = pathlib.Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("the first time")
"""


def pytest_on(folder: Path, mark: str, *options: str) -> tuple[int, str]:
    """Run a test that fails the first time; return the exit code and the output."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(FAILS_ONCE.format(mark=mark))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers =\n timing(reason)\n long(reason)\n")
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_rerunfailures"]
    command = [sys.executable, "-m", "pytest", *plugins, "-rR", "--strict-markers", *options, str(folder)]
    quick = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # to import all others takes seconds
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=quick)
    return ended.returncode, ended.stdout + ended.stderr


def test_a_test_marked_with_a_reason_runs_once_more(tmp_path: Path) -> None:
    code, output = pytest_on(tmp_path, '@pytest.mark.timing(reason="a deadline")')
    assert code == 0 and "1 passed, 1 rerun" in output


def test_a_test_without_the_mark_fails_at_once(tmp_path: Path) -> None:
    code, output = pytest_on(tmp_path, "")
    assert code == 1 and "1 failed" in output and "1 rerun" not in output


@pytest.mark.parametrize("mark", [pytest.mark.timing, pytest.mark.timing(reason=" "), pytest.mark.timing("a deadline")], ids=str)
def test_a_mark_without_a_reason_is_refused(request: pytest.FixtureRequest, mark: pytest.MarkDecorator) -> None:
    request.node.add_marker(mark)
    with pytest.raises(pytest.UsageError, match=r"_is_refused\[.*: expected @pytest\.mark\.timing\(reason="):
        rerun_timing_tests([request.node])


def test_a_long_test_runs_with_the_option_alone_and_needs_a_reason(tmp_path: Path) -> None:
    long = '@pytest.mark.long(reason="a whole study")'
    assert "1 deselected" in pytest_on(tmp_path, long)[1] and not (tmp_path / "seen").exists()
    assert "1 failed" in pytest_on(tmp_path, long, "--long")[1] and (tmp_path / "seen").exists()
    assert "1 deselected" in pytest_on(tmp_path, "", "--long")[1]
    code, output = pytest_on(tmp_path, "@pytest.mark.long")
    assert code == 4 and "test_fails_once: expected @pytest.mark.long(reason=" in output


def test_a_warning_fails_a_test_without_the_stack() -> None:
    with pytest.raises(UserWarning, match="of this test"):
        warnings.warn("of this test", stacklevel=1)
