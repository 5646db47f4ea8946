"""The mark `timing`: the one reason for which a failed test runs again."""

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
