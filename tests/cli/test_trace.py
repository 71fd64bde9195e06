"""`milepost trace`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from milepost.cli.app import run
from milepost.sim.traces.stats import stats_of
from milepost.sim.traces.trace import Trace
from tests.sim.traces.files import MOONCAKE, SESSIONS, jsonl, read

Capture = pytest.CaptureFixture[str]


def cells(text: str) -> dict[str, list[str]]:
    """First cell of each row -> the others."""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if "│" in line]
    return {row[0]: row[1:] for row in rows}


def test_stats_as_tables(capsys: Capture) -> None:
    assert run(["trace", "stats", str(SESSIONS), "--session-rate", "0.1", "--seed", "2"]) == 0
    out, err = capsys.readouterr()
    found = stats_of(read(SESSIONS, session_rate=0.1, seed=2))
    table = cells(out)
    assert table["form"] == ["claude-code"]
    assert table["sessions"] == ["11"]
    assert table["input tokens"] == [f"{found.input_tokens:,}"]
    assert table["prefix bound"] == [f"{found.prefix_bound:.2%}"]
    assert table["seconds"] == [f"{found.seconds:,.1f}"]
    assert table["input tokens of a request"][-1] == f"{found.input.max:,.0f}"
    assert err.splitlines() == [f"milepost: note: {note}" for note in found.notes]


def test_stats_as_json(capsys: Capture) -> None:
    assert run(["trace", "stats", str(MOONCAKE), "--json", "--first", "50", "--time-scale", "2"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    expected = stats_of(read(MOONCAKE, first=50, time_scale=2))
    assert found["requests"] == 50
    assert (found["seconds"], found["prefix_bound"]) == (expected.seconds, expected.prefix_bound)
    assert found["overlap"]["p90"] == expected.overlap.p90 if expected.overlap else False
    assert err == ""


def test_stats_of_lengths(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "t.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,200,3\n2,oops,3\n", encoding="utf-8")
    assert run(["trace", "stats", str(path), "--skip-bad"]) == 0
    out, err = capsys.readouterr()
    table = cells(out)
    assert table["prefix bound"] == ["not known"]
    assert table["bad rows left out"] == ["1"]
    assert "overlap with an earlier one, tokens" not in table
    assert "can't say anything about reuse" in err
    assert run(["trace", "stats", str(path)]) == 2
    assert "line 3: ContextTokens must be a whole number. Given: 'oops'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats", "missing.jsonl"], "There is no file missing.jsonl. Give the path of a trace."),
        (["stats", str(MOONCAKE), "--form", "mooncak"], "Did you mean 'mooncake'?"),
        (["stats", str(MOONCAKE), "--time-scale", "nan"], "time_scale must be a number"),
        (["stats", str(MOONCAKE), "--first", "0"], "first must be a whole number from 1"),
        (
            ["stats", str(MOONCAKE), "--shared-prompt", "100"],
            "must be a multiple of the trace's block of 512 tokens",
        ),
        (
            ["convert", str(MOONCAKE), "out.jsonl", "--to", "token-ids"],
            "knows blocks of 512 tokens, not the tokens",
        ),
        (["convert", str(MOONCAKE), "out.jsonl"], "Missing option '--to'"),
        (
            ["convert", str(MOONCAKE), "no/such/folder/out.jsonl", "--to", "mooncake"],
            "No such file or directory",
        ),
    ],
)
def test_errors_are_one_line(arguments: list[str], message: str, capsys: Capture) -> None:
    assert run(["trace", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert message in err
    assert err.count("\n") == 1


def test_convert(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.jsonl.zst"
    arguments = [
        "trace",
        "convert",
        str(SESSIONS),
        str(out),
        "--to",
        "mooncake",
        "--first",
        "30",
        "--shared-prompt",
        "640",
    ]
    assert run(arguments) == 0
    printed, err = capsys.readouterr()
    assert printed == ""
    assert 'Ids stand for 64 tokens, as "block_size" in each row says' in err
    expected = read(SESSIONS, first=30, shared_prompt_tokens=640)
    back = read(out)
    assert [r.num_prompt for r in back.requests] == [r.num_prompt for r in expected.requests]
    assert stats_of(back).prefix_bound == stats_of(expected).prefix_bound


def test_in_is_not_overwritten(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(MOONCAKE.read_bytes())
    (tmp_path / "link.jsonl").symlink_to(path)
    for source, out in ((path, path), (path, tmp_path / "link.jsonl"), (tmp_path, path)):
        assert run(["trace", "convert", str(source), str(out), "--to", "mooncake"]) == 2
        assert "OUT would overwrite IN" in capsys.readouterr().err
    assert path.read_bytes() == MOONCAKE.read_bytes()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_an_older_file_stays_when_a_new_one_cannot_be_written(
    suffix: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / f"out.jsonl{suffix}"
    out.write_bytes(b"older")

    def no_space(*_: object) -> Iterator[dict[str, object]]:
        yield {}
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("milepost.sim.traces.writing._mooncake_rows", no_space)
    assert run(["trace", "convert", str(MOONCAKE), str(out), "--to", "mooncake"]) == 2
    assert f"{out} can't be written: No space left on device" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert out.read_bytes() == b"older"


def test_a_name_gives_no_orders_to_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "a\x1b[31m[red]b\n.jsonl"
    path.write_bytes(MOONCAKE.read_bytes())
    assert run(["trace", "stats", str(path)]) == 0
    assert capsys.readouterr().out.splitlines()[0].strip() == "a\ufffd[31m[red]b\ufffd"
    path.write_text("{", encoding="utf-8")
    assert run(["trace", "stats", str(path)]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert "a\ufffd[31m[red]b" in err


@pytest.fixture
def chat_log(tmp_path: Path) -> Path:
    """Two turns of one conversation, and another."""
    first = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": "What is 3 plus 4?"},
    ]
    second = [*first, {"role": "assistant", "content": "7"}, {"role": "user", "content": "And plus 5?"}]
    other = [first[0], {"role": "user", "content": "Name a colour."}]
    rows = [
        {"timestamp": "2025-06-01T12:00:00Z", "messages": first, "response": "7", "session": "sums"},
        {"timestamp": "2025-06-01T12:00:09.5Z", "messages": second, "response": "12", "session": "sums"},
        {"timestamp": "2025-06-01T12:00:11Z", "messages": other, "usage": {"completion_tokens": 40}},
    ]
    return jsonl(tmp_path / "chat.jsonl", rows)


def converted(chat_log: Path, tmp_path: Path) -> Trace:
    out = tmp_path / "ids.jsonl"
    arguments = [
        "trace",
        "convert",
        str(chat_log),
        str(out),
        "--to",
        "token-ids",
        "--tokenizer",
        "milepost-toy-k3",
    ]
    assert run(arguments) == 0
    return read(out)


def test_a_chat_log_is_written_as_the_shipped_model_reads_it(chat_log: Path, tmp_path: Path) -> None:
    trace = converted(chat_log, tmp_path)
    first, second, other = trace.requests
    assert [request.arrival for request in trace.requests] == [0, 9.5, 11]
    assert [request.turn for request in (first, second)] == [0, 1]
    assert other.num_output == 40
    assert isinstance(first.prompt, tuple)
    assert isinstance(second.prompt, tuple)
    # The second turn's prompt repeats the first one's messages; each message's end is known.
    assert [len(request.message_ends) for request in trace.requests] == [2, 4, 2]
    assert second.message_ends[:2] == first.message_ends
    assert second.prompt[: first.message_ends[-1]] == first.prompt[: first.message_ends[-1]]
    assert first.message_ends[-1] < len(first.prompt)
    # An answer is as the next prompt repeats it.
    assert second.prompt[: len(first.prompt) + first.num_output] == first.prompt + first.output_ids
    assert first.num_output == len(first.output_ids) > 0
    found = stats_of(trace)
    assert found.prefix_bound_tokens is not None
    assert found.prefix_bound_tokens >= first.message_ends[-1] + other.message_ends[0]


def test_a_chat_log_needs_a_tokenizer(chat_log: Path, capsys: Capture) -> None:
    assert run(["trace", "stats", str(chat_log)]) == 2
    assert "Give --tokenizer with the model's folder." in capsys.readouterr().err
    assert run(["trace", "stats", str(chat_log), "--tokenizer", "no-such-folder"]) == 2
    assert "no-such-folder" in capsys.readouterr().err
    assert run(["trace", "stats", str(chat_log), "--tokenizer", "milepost-toy-k3"]) == 0
