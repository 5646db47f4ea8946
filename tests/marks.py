"""What marks change: a test that depends on timing runs again, and one with the stack may warn."""

from collections.abc import Iterable

import pytest


def rerun_timing_tests(items: Iterable[pytest.Item]) -> None:
    """Let each test marked `timing` run once more if it fails.

    Raises:
        pytest.UsageError: a mark has no reason.
    """
    for item in items:
        if mark := item.get_closest_marker("timing"):
            reason = mark.kwargs.get("reason")
            if not (isinstance(reason, str) and reason.strip()) or mark.args or len(mark.kwargs) > 1:
                raise pytest.UsageError(
                    f'{item.nodeid}: expected @pytest.mark.timing(reason="..."), got {mark.args} {mark.kwargs}'
                )
            item.add_marker(pytest.mark.flaky(reruns=1))


def let_stack_tests_warn(items: Iterable[pytest.Item]) -> None:
    """Print warnings of tests with the mark `stack`, instead of failing them.

    Prefect, vLLM and torch run in their processes, with warnings that depend on the machine and on the order of imports.
    """
    for item in items:
        if item.get_closest_marker("stack"):
            item.add_marker(pytest.mark.filterwarnings("default"))
