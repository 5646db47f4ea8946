"""What marks change: a test that depends on timing runs again, one with the stack may warn, and a long one waits for `--long`."""

from collections.abc import Iterable

import pytest


def rerun_timing_tests(items: Iterable[pytest.Item]) -> None:
    """Let each test marked `timing` run once more if it fails.

    Raises:
        pytest.UsageError: a mark has no reason.
    """
    for item in items:
        if _has(item, "timing"):
            item.add_marker(pytest.mark.flaky(reruns=1))


def add_long_option(parser: pytest.Parser) -> None:
    """Add the option `--long`."""
    parser.addoption("--long", action="store_true", help="run the tests marked `long`, and no others")


def choose_long_or_others(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the tests marked `long` where the option says so, else all others.

    Raises:
        pytest.UsageError: a mark has no reason.
    """
    chosen = [_has(item, "long") == config.getoption("long") for item in items]
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, chosen, strict=True) if not kept])
    items[:] = [item for item, kept in zip(items, chosen, strict=True) if kept]


def _has(item: pytest.Item, name: str) -> bool:
    """Return whether a test has a mark that needs a reason. Raises pytest.UsageError where the mark has none."""
    mark = item.get_closest_marker(name)
    if mark is None:
        return False
    reason = mark.kwargs.get("reason")
    if not (isinstance(reason, str) and reason.strip()) or mark.args or len(mark.kwargs) > 1:
        raise pytest.UsageError(f'{item.nodeid}: expected @pytest.mark.{name}(reason="..."), got {mark.args} {mark.kwargs}')
    return True


def let_stack_tests_warn(items: Iterable[pytest.Item]) -> None:
    """Print warnings of tests with the mark `stack`, instead of failing them.

    Prefect, vLLM and torch run in their processes, with warnings that depend on the machine and on the order of imports.
    """
    for item in items:
        if item.get_closest_marker("stack"):
            item.add_marker(pytest.mark.filterwarnings("default"))
