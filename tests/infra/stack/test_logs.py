"""The end of a part's log, and its new lines."""

from itertools import islice
from pathlib import Path

import pytest

from infra.stack import logs


@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_last_lines_are_those_of_a_plain_reading(tmp_path: Path, count: int) -> None:
    for text in ("", "one\n", "one\ntwo", "a\n\nb\n", "".join(f"line {n}\n" for n in range(40))):
        (log := tmp_path / "part.log").write_text(text)
        assert list(logs.lines(log, count)) == text.splitlines()[-count:], text


def test_new_lines_follow_also_after_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "part.log"
    log.write_text("old\nlast\n")
    found = logs.lines(log, 1, follow=True, poll=0.001)
    assert next(found) == "last"
    with log.open("a") as out:
        out.write("new\n")
    assert next(found) == "new"
    log.rename(tmp_path / "part.log.1")
    log.write_text("after\nthe rotation\n")
    assert list(islice(found, 2)) == ["after", "the rotation"]
