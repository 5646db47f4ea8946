"""A failed test runs again only if its mark gives the reason."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from infra.settings import ROOT

CONFTEST = """
from tests.marks import rerun_timing_tests

def pytest_collection_modifyitems(items):
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


def pytest_on(folder: Path, mark: str) -> tuple[int, str]:
    """Run a test that fails the first time; return the exit code and the output."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(FAILS_ONCE.format(mark=mark))
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\nmarkers = timing(reason)\n")
    plugins = ["-p", "no:cacheprovider", "-p", "pytest_rerunfailures"]
    command = [sys.executable, "-m", "pytest", *plugins, "-rR", "--strict-markers", str(folder)]
    quick = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # to import all others takes seconds
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=quick)
    return ended.returncode, ended.stdout + ended.stderr


def test_a_test_marked_with_a_reason_runs_once_more(tmp_path: Path) -> None:
    code, output = pytest_on(tmp_path, '@pytest.mark.timing(reason="a deadline")')
    assert code == 0 and "1 passed, 1 rerun" in output


def test_a_test_without_the_mark_fails_at_once(tmp_path: Path) -> None:
    code, output = pytest_on(tmp_path, "")
    assert code == 1 and "1 failed" in output and "1 rerun" not in output


def test_a_mark_without_a_reason_is_refused(tmp_path: Path) -> None:
    for mark in ("@pytest.mark.timing", '@pytest.mark.timing(reason=" ")', '@pytest.mark.timing("a deadline")'):
        code, output = pytest_on(tmp_path, mark)
        assert code == 4 and "test_fails_once: expected @pytest.mark.timing(reason=" in output


def test_a_warning_fails_a_test_without_the_stack() -> None:
    with pytest.raises(UserWarning, match="of this test"):
        warnings.warn("of this test", stacklevel=1)
