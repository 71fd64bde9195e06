"""``milepost plan moe``: from its options to tables, JSON, a page and explanations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from milepost.cli.app import run

Capture = pytest.CaptureFixture[str]

SMALL = ("plan", "moe", "--model", "kimi-linear", "--hardware", "h200", "--dp", "4")


def test_tables(capsys: Capture) -> None:
    assert run([*SMALL, "--decode-tokens", "16"]) == 0
    shown = capsys.readouterr().out
    for text in ("kimi-linear on 4 x h200", "expert parallel degree for decoding", "Waves", "\n*  "):
        assert text in shown


def test_json_names_units(capsys: Capture) -> None:
    assert run([*SMALL, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["token_layer_bytes"] == 8 * 3 * 2304
    assert [degree["ranks"] for degree in found["degrees"]] == [1, 2, 4]
    assert found["degrees"][0]["phases"][0]["experts_seconds"] > 0


def test_every_option_reaches_the_plan(capsys: Capture, tmp_path: Path) -> None:
    counts = tmp_path / "counts.csv"
    counts.write_text(",".join(["3"] * 256))
    options = (
        *("--dispatch-dtype", "bf16", "--combine-dtype", "fp8", "--send", "ranks", "--load", str(counts)),
        *("--placement", "replicated", "--redundant-per-rank", "2", "--seed", "7", "--sms", "100"),
        *(
            "--overlap",
            "--decode-tokens",
            "5",
            "--prefill-tokens",
            "77",
            "--ep",
            "2",
            "--memory-share",
            "0.8",
        ),
    )
    assert run([*SMALL, *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = {entry["name"]: entry for entry in found["derivations"]}
    for name, value in {
        "dispatch.item_bytes": 2,
        "combine.item_bytes": 1,
        "ep2.redundant": 2,
        "device.sms": 100,
        "decode.tokens": 5,
        "prefill.tokens": 77,
        "memory_share": 0.8,
    }.items():
        assert known[name]["value"] == value
    assert "seed 7" in known["ep2.decode.max_over_mean"]["source"]
    assert known["ep2.decode.copies"]["formula"] == "ep2.ranks_reached"
    assert "waved" in known["ep2.decode.layer.seconds"]["formula"]
    assert (found["best_decode"], found["load"]) == (2, "counts.csv")


def test_a_number_is_explained(capsys: Capture) -> None:
    assert run(["plan", "moe", "--explain", "token_layer_bytes"]) == 0
    shown = capsys.readouterr().out
    assert "172,032" in shown
    assert "top_k" in shown
    assert run(["plan", "moe", "--explain", "list"]) == 0
    assert "ep16.decode.layer.seconds" in capsys.readouterr().out


def test_a_page(capsys: Capture, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    page = tmp_path / "moe.html"
    assert run([*SMALL, "--html", str(page)]) == 0
    capsys.readouterr()
    text = page.read_text()
    assert "Expert parallelism: kimi-linear" in text
    assert "Time of a layer in decoding" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tp", "5"), "tensor_parallel must divide"),
        (("--model", "qwen3.5-4b"), "needs a model with experts"),
        (("--load", "nowhere.json"), "load must be uniform"),
        (("--placement", "balance"), "Did you mean 'balanced'?"),
        (("--decode-tokens", "0"), "decode_tokens must be 1"),
        (("--ep", "3"), "divide the 4 ranks"),
        (("--explain", "token_layer_byte"), "Did you mean 'token_layer_bytes'?"),
        (("--decode-tokens", "many"), "is not a valid integer"),
    ],
)
def test_what_can_not_be_is_one_line(capsys: Capture, options: tuple[str, ...], message: str) -> None:
    assert run([*SMALL, *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("milepost: error: ")
    assert error.count("\n") == 1
