"""JSON, CSV and Parquet: the right keys, plain values, nothing lost."""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path

import msgspec
import polars
import pytest

from milepost.errors import ConfigError, InputError
from milepost.sim.reports import to_json, write_csv, write_html, write_parquet
from milepost.sim.reports.flat import to_rows
from milepost.sim.runs import Percentiles, RunResult
from tests.sim.reports.results import make_result, make_sweep

# In this order, as the command's documentation promises.
PROMISED = [
    *("trace", "model", "policy", "eviction", "layout", "preset", "match_unit", "budget_bytes"),
    *("requests", "input_tokens", "hit_tokens", "hit_rate", "snapshots_per_request"),
    *("state_bytes_mean", "kv_bytes_mean", "losses", "ttft", "tpot"),
]


def test_json_has_the_promised_keys_first_and_every_other_field() -> None:
    (fields,) = json.loads(to_json([make_result()]))
    assert list(fields)[: len(PROMISED)] == PROMISED
    assert set(fields) == set(RunResult.__struct_fields__)
    assert fields["losses"]["evicted_state"] > 0
    assert set(fields["ttft"]) == {"mean", "p50", "p90", "p99"}


def test_json_reads_back_as_what_it_was() -> None:
    results = make_sweep()
    assert msgspec.convert(json.loads(to_json(results)), list[RunResult]) == results
    assert json.loads(to_json([])) == []


def test_json_has_a_result_a_line() -> None:
    assert len(to_json(make_sweep()).splitlines()) == len(make_sweep()) + 2


def test_json_has_no_numbers_that_json_lacks() -> None:
    odd = make_result(
        goodput=math.nan, ttft=Percentiles(mean=math.inf, p50=1.0, p90=-math.inf, p99=2.0), tpot=None
    )
    text = to_json([odd])
    assert "NaN" not in text
    assert "Infinity" not in text
    (fields,) = json.loads(text)
    assert fields["goodput"] is None
    assert fields["ttft"] == {"mean": None, "p50": 1.0, "p90": None, "p99": 2.0}
    assert fields["tpot"] is None


def test_csv_flattens_what_is_nested(tmp_path: Path) -> None:
    results = [
        make_result(0.2),
        make_result(0.3, ttft=None, losses={"salt": 7}, budget_bytes=None, trace='a,"b"\n'),
    ]
    write_csv(results, tmp_path / "deep" / "results.csv")
    with (tmp_path / "deep" / "results.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert float(first["hit_rate"]) == results[0].hit_rate
    assert float(first["ttft.p90"]) == results[0].ttft.p90 if results[0].ttft else False
    assert int(first["losses.unseen"]) == results[0].losses["unseen"]
    assert (second["losses.unseen"], second["losses.salt"]) == ("0", "7")
    assert (second["ttft.p90"], second["budget_bytes"]) == ("", "")
    assert second["trace"] == 'a,"b"\n'
    assert not any(name.startswith(("samples", "used_by")) for name in first)


def test_parquet_keeps_types_even_where_all_is_missing(tmp_path: Path) -> None:
    results = [make_result(0.2, ttft=None, tpot=None, goodput=None, budget_bytes=None, hardware="")] * 2
    write_parquet(results, tmp_path / "results.parquet")
    frame = polars.read_parquet(tmp_path / "results.parquet")
    assert frame.height == 2
    assert frame.schema["budget_bytes"] == polars.Int64
    assert frame.schema["ttft.p90"] == frame.schema["goodput"] == polars.Float64
    assert frame.schema["queueing"] == polars.Boolean
    assert frame["hit_tokens"].to_list() == [results[0].hit_tokens] * 2


def test_parquet_and_csv_have_the_same_columns(tmp_path: Path) -> None:
    write_parquet(make_sweep(), tmp_path / "results.parquet")
    frame = polars.read_parquet(tmp_path / "results.parquet")
    assert frame.to_dicts() == to_rows(make_sweep())


def test_no_results_are_an_empty_file(tmp_path: Path) -> None:
    write_csv([], tmp_path / "none.csv")
    write_parquet([], tmp_path / "none.parquet")
    assert polars.read_parquet(tmp_path / "none.parquet").height == 0


@pytest.mark.parametrize(("library", "write"), [("polars", write_parquet), ("plotly.offline", write_html)])
def test_what_is_missing_is_named(
    library: str, write: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    assert callable(write)
    with pytest.raises(ConfigError, match=r"not installed.*pip install 'milepost\[simulate\]'"):
        write(make_sweep(), tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="can't be written"):
        write_csv(make_sweep(), tmp_path / "file" / "results.csv")


def test_a_written_file_has_the_usual_mode_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    write_csv(make_sweep(), tmp_path / "results.csv")
    (tmp_path / "plain").touch()
    assert (tmp_path / "results.csv").stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert {path.name for path in tmp_path.iterdir()} == {"plain", "results.csv"}


def test_a_report_needs_results(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one result"):
        write_html([], tmp_path / "report.html")
