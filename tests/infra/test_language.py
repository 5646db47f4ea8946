"""The language of code: the only part of a file's path that is stored."""

import pytest

from infra.language import language


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("file:///home/ada/secret project/main.PY", "", "py"),
        ("C:\\\\work\\\\a.test.tsx", "typescriptreact", "tsx"),
        ("", "C++", "c++"),
        ("Makefile", "make", "make"),
        (".env", "", ""),
        ("a.this-ending-is-far-too-long", "rust", "rust"),
        ("a.p y", "two words", ""),
        ("", "", ""),
    ],
)
def test_the_ending_else_the_name_and_nothing_else(path: str, name: str, expected: str) -> None:
    assert language(path, name) == expected
