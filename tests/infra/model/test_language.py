"""The language of a file: the only part of its path that is stored."""

import pytest

from infra.model.language import language


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("file:///home/ada/secret project/main.PY", "", "py"),
        ("C:\\\\work\\\\a.test.tsx", "typescriptreact", "tsx"),
        ("", "C++", "c++"),
        ("Makefile", "make", "make"),
        ("build/Dockerfile", "", "dockerfile"),
        ("credentials.py", "", "py"),
        (".env", "", "env"),
        ("/home/ada/.env.production", "", "env"),
        ("/home/ada/.our-secret-project", "", ""),
        ("my.env", "", "env"),
        ("a.this-ending-is-far-too-long", "rust", "rust"),
        ("a.p y", "two words", ""),
        ("vscode-notebook-cell:/home/ada/a.ipynb#ch0000001", "python", "ipynb"),
        ("vscode-notebook-cell://wsl%2Bubuntu/a.ipynb#X2.py", "", "ipynb"),
        ("git:/home/ada/a.py?ref=main", "", "py"),
        ("/home/ada/c#/a.cs", "", "cs"),
        ("/home/ada/#a.py#", "", "py"),
        ("/home/ada/a.py~", "", "py"),
        ("", "", ""),
    ],
)
def test_the_language_is_the_file_ending_or_the_language_name(path: str, name: str, expected: str) -> None:
    assert language(path, name) == expected


def test_a_path_of_windows_names_its_file() -> None:
    assert [language(rf"src\{name}") for name in (".env.local", "Dockerfile", "a.py")] == ["env", "dockerfile", "py"]
