"""Kept characters: whole tokens of the shown text, in order, near the place."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.model.kept_text import REACH, common_weight, kept_characters, tokens


@pytest.mark.parametrize(
    ("shown", "settled"),
    [
        ("pass", "bypass_cache()"),
        ("in", "print(x)"),
        ("result", "results = []"),
        ("Name", "userName"),
        ("user", "userName"),
        ("total", "sub_total"),
        ("1", "10"),
        ("1", "1.5"),
        ("5", "1.5"),
        ("0", "0x10"),
        ("1", "1e-3"),
        ("=", "a == b"),
        ("=", "a != b"),
        ("<", "a <= b"),
        ("*", "a ** b"),
        ("-", "a -> b"),
        (":", "std::a"),
        (".", "a...b"),
        ('"', '"""a"""'),
        ("'", "'''a'''"),
        ("foo", "$foo"),
        ("cafe", "cafe\u0301"),
        ("cafe", unicodedata.normalize("NFC", "cafe\u0301")),
        ("q", "q\u0307 = 1"),
        ("\u0915", "\u0915\u093f"),
        ("i", "\n".join(["x = 1"] * 40 + ["i"])),
        ("i", "x" * 300 + " i"),
        ("i", " ".join(["x"] * 300 + ["i"])),
    ],
)
def test_a_part_of_a_token_and_what_stands_far_away_are_not_kept(shown: str, settled: str) -> None:
    assert kept_characters(shown, settled) == 0


@pytest.mark.parametrize(
    ("shown", "settled"),
    [
        ("foo(bar)", "f(foo(bar))"),
        ("foo(bar)", "foo(bar), 1)"),
        ("foo(a,b)", "foo(\n        a,\n        b,\n    )"),
        ("foo(a, b)", "foo(a,b)"),
        ("if a:\n    b()", "if a:\r\n        b()"),
        ("a = 1\n\n\n\nb = 2", "a = 1\nb = 2"),
        ("x=1.5e-3", "x = 1.5e-3\n"),
        ("caf\u00e9 = 1", "cafe\u0301 = 1"),
        ("userName", "x = userName"),
        ('f"{a}"', 'f"{a}" + b'),
        ("List<List<int>>", "List< List<int>>"),
        ("a\u2028b", "a\u2028b c"),
    ],
)
def test_blanks_and_forms_of_unicode_lose_nothing(shown: str, settled: str) -> None:
    assert kept_characters(shown, settled) == len(shown)


@pytest.mark.parametrize(
    ("shown", "settled", "kept"),
    [
        ("# 计算两个数的和", "# 计算两个数的总和", 9),
        ("名前を表示する", "名前を表示するよ", 7),
        ("データを読む", "データを書く", 4),
    ],
)
def test_ideographs_and_kana_are_words_of_their_own(shown: str, settled: str, kept: int) -> None:
    assert kept_characters(shown, settled) == kept


def test_the_order_of_tokens_counts() -> None:
    assert kept_characters("f(a, b)", "f(b, a)") == 7 * (len("f(") + len("a") + len(")")) // 6


CODE = st.lists(st.sampled_from(["a", "bb", "=", "==", "1", "1.5", "(", ")", " ", "\n", "é", "e\u0301", '"', '"""', "$x", "."]))


@given(CODE.map("".join), CODE.map("".join))
def test_kept_is_the_common_weight_of_the_tokens_within_reach(shown: str, settled: str) -> None:
    wanted = tokens(shown)
    total = sum(map(len, wanted))
    found = tokens(settled, REACH * total)
    assert tokens(settled)[: len(found)] == found and (
        len(found) == len(tokens(settled)) or sum(map(len, found)) >= REACH * total
    )
    assert kept_characters(shown, settled) == (len(shown) * common_weight(wanted, found) // total if total else 0)


@given(CODE.map("".join), st.text(" \n\t", min_size=1, max_size=9))
def test_what_stands_there_is_kept_in_whole(shown: str, blanks: str) -> None:
    assert kept_characters(shown, shown + blanks + "more") == (len(shown) if shown.strip() else 0)


@pytest.mark.parametrize(
    ("shown", "settled", "kept"),
    [
        ("foo(bar)", "foo(bar)", 8),
        ("foo(bar)", "x = foo(bar) + 1", 8),
        ("foo(bar)", "foo(baz)", 5),
        ("foo(bar)", "", 0),
        ("foo(bar)", "other", 0),
        ("a b", "b a", 1),
        ("  ", "x", 0),
    ],
)
def test_what_is_kept_of_a_completion(shown: str, settled: str, kept: int) -> None:
    assert kept_characters(shown, settled) == kept


words = st.lists(st.sampled_from(["a", "bb", "ccc", "("]), max_size=7)


@given(words, words)
def test_the_common_weight_is_the_largest(one: list[str], other: list[str]) -> None:
    def slow(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        taken = slow(i + 1, j + 1) + len(one[i]) if one[i] == other[j] else 0
        return max(taken, slow(i + 1, j), slow(i, j + 1))

    assert common_weight(one, other) == slow(0, 0)
