"""Loads of the experts, from words and from files, good and hostile."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from milepost.errors import ConfigError
from milepost.planner.moe.loads import chosen_shares, read_loads


def read(text: str, num_experts: int = 4, layers: int = 3) -> list[list[float]]:
    found: list[list[float]] = read_loads(text, num_experts, layers).layers.tolist()
    return found


def test_words() -> None:
    assert read("uniform") == [[1, 1, 1, 1]]
    assert read("Zipf( 1 )") == [pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])]
    assert read("zipf(0)") == [[1, 1, 1, 1]]
    assert read_loads("zipf(0)", 4, 3).uniform
    assert not read_loads("zipf(0.5)", 4, 3).uniform


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("a.json", "[1, 2, 3, 4]", [[1, 2, 3, 4]]),
        ("a.json", "[[1, 2, 3, 4], [4, 3.5, 2, 1]]", [[1, 2, 3, 4], [4, 3.5, 2, 1]]),
        ("a.csv", "1,2,3,4\n", [[1, 2, 3, 4]]),
        ("a.csv", "\ufeff1,2,3,4\r\n\r\n4, 3, 2, 1", [[1, 2, 3, 4], [4, 3, 2, 1]]),
        ("a.csv", "1\n2\n3\n4\n", [[1, 2, 3, 4]]),
        ("counts", "0,0,0,5", [[0, 0, 0, 5]]),
    ],
)
def test_files(tmp_path: Path, name: str, content: str, rows: list[list[float]]) -> None:
    path = tmp_path / name
    path.write_text(content)
    assert read(str(path)) == rows
    assert read_loads(str(path), 4, 3).ordered


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "an empty file"),
        ("   \n ", "an empty file"),
        ("[]", "a list of counts"),
        ("[[]]", "must have 4 counts"),
        ("{}", "a list of counts"),
        ('{"counts": [1, 2, 3, 4]}', "a list of counts"),
        ("[1, 2, 3", "not valid JSON"),
        ("[1, 2, 3]", "must have 4 counts, one an expert. Given: 3"),
        ("[1, 2, 3, 4, 5]", "must have 4 counts, one an expert. Given: 5"),
        ("[[1, 2, 3, 4], [1, 2]]", "row 2, must have 4 counts"),
        ("[[1, 2, 3, 4], 5]", "numbers alone"),
        ("[1, 2, null, 4]", "numbers alone. Given: None"),
        ("[1, 2, true, 4]", "numbers alone. Given: True"),
        ('[1, 2, "3", 4]', "numbers alone. Given: '3'"),
        ("[1, 2, NaN, 4]", "not valid JSON"),
        ("[1, 2, 1e999, 4]", "counts"),
        (f"[1, 2, {'9' * 400}, 4]", "counts"),
        ("[1, 2, -3, 4]", "from 0 to 1e+18. Given: -3"),
        ("[0, 0, 0, 0]", "a count above 0"),
        ("[1e308, 1e308, 1e308, 1e308]", "from 0 to 1e+18. Given: 1e+308"),
        ("[[1,1,1,1],[1,1,1,1],[1,1,1,1],[1,1,1,1]]", "at most 3. Given: 4"),
        ("1,2,nan,4", "from 0 to 1e+18. Given: nan"),
        ("1,2,inf,4", "from 0 to 1e+18. Given: inf"),
        ("1,2,-1,4", "from 0 to 1e+18. Given: -1"),
        ("expert,count\n0,5", "without a heading. Given in line 1"),
        ("1,2,3,4\n1,2,,4", "Given in line 2"),
        ("1,2,3,4\n1,2", "row 2, must have 4 counts"),
    ],
)
def test_hostile_files_are_one_line(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "counts"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        read(str(path))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "counts"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read(str(path))
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(ConfigError, match="not valid JSON"):
        read(str(path))


@pytest.mark.parametrize("text", ["", "uni", "no/such/file.json", "zipf", "a\0b", "x" * 5000, ".", "/"])
def test_neither_a_word_nor_a_file(text: str) -> None:
    with pytest.raises(ConfigError, match="load must be uniform, zipf"):
        read(text)


@pytest.mark.parametrize("exponent", ["", "x", "nan", "inf", "-1", "11", "1e300"])
def test_exponents_that_mean_nothing(exponent: str) -> None:
    with pytest.raises(ConfigError, match="The S of zipf"):
        read(f"zipf({exponent})")


def test_shares_sum_to_the_experts_of_a_token_and_are_chances() -> None:
    generator = np.random.default_rng(3)
    for _ in range(200):
        count = int(generator.integers(1, 40))
        top_k = int(generator.integers(1, count + 1))
        loads = generator.pareto(0.5, count)
        shares = chosen_shares(loads, top_k)
        assert shares.sum() == pytest.approx(top_k)
        assert (shares >= 0).all()
        assert (shares <= 1).all()
        order = np.argsort(loads)
        assert (np.diff(shares[order]) >= -1e-12).all()


def test_shares_are_in_proportion_below_certainty() -> None:
    assert chosen_shares(np.array([1.0, 2.0, 3.0, 4.0]), 2) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    # The first would have 8 * 2 / 11: it is certain, and the others share what is left.
    assert chosen_shares(np.array([8.0, 1.0, 1.0, 1.0]), 2) == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3])


def test_counts_next_to_nothing_are_counts() -> None:
    assert chosen_shares(np.array([5e-324, 5e-324, 0.0]), 1) == pytest.approx([0.5, 0.5, 0.0])


def test_experts_without_a_load_fill_up_a_token() -> None:
    assert chosen_shares(np.array([5.0, 0.0, 0.0]), 2) == pytest.approx([1, 0.5, 0.5])


def test_a_file_of_all_layers(tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    path.write_text(json.dumps([[1] * 896] * 92))
    assert read_loads(str(path), 896, 92).layers.shape == (92, 896)


def test_shares_of_vanishing_loads_still_sum_to_the_experts_a_token_takes() -> None:
    loads = np.array([1e18] + [1e-300] * 7)
    assert chosen_shares(loads, 2).sum() == pytest.approx(2)
