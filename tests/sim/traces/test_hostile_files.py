"""Whatever a file holds, it is read or there is one clean error."""

from __future__ import annotations

import builtins
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.errors import ConfigError, InputError, TraceError
from milepost.sim.traces import rows as rows_module
from milepost.sim.traces.options import FORMS
from tests.sim.traces.files import MOONCAKE, SESSIONS, jsonl, mooncake_row, plain, read

GOOD = json.dumps(mooncake_row([1, 2], 1000)).encode()


def packed_zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("name", ["t.jsonl", "t.gz", "t.zst", "t"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, packed_zstd])
def test_packing_is_told_by_content(tmp_path: Path, name: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / name
    data = gzip.decompress(MOONCAKE.read_bytes())
    path.write_bytes(pack(data))
    assert plain(read(path)) == plain(read(MOONCAKE))


def test_packed_pieces_one_after_the_other(tmp_path: Path) -> None:
    data = gzip.decompress(MOONCAKE.read_bytes())
    for name, pack in (("a.gz", gzip.compress), ("a.zst", packed_zstd)):
        (tmp_path / name).write_bytes(pack(data[:70_000]) + pack(data[70_000:]))
        assert plain(read(tmp_path / name)) == plain(read(MOONCAKE))


@pytest.mark.parametrize("pack", [gzip.compress, packed_zstd])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_torn_file(tmp_path: Path, pack: Callable[[bytes], bytes], share: float) -> None:
    data = pack(gzip.decompress(MOONCAKE.read_bytes()))
    path = tmp_path / "torn"
    path.write_bytes(data[: max(12, int(len(data) * share))])
    for skip_bad in (False, True):  # what is missing is no bad row
        with pytest.raises(TraceError, match="torn is torn"):
            read(path, form="mooncake", skip_bad=skip_bad)


@pytest.mark.parametrize("pack", [gzip.compress, packed_zstd])
def test_a_damaged_file(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    data = bytearray(pack(gzip.decompress(MOONCAKE.read_bytes())))
    data[len(data) // 2 :] = b"\xa5" * (len(data) - len(data) // 2)
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(TraceError, match=r"torn|damaged"):
        read(tmp_path / "t", form="mooncake", skip_bad=True)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\n\r\n  \n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (gzip.compress(b""), "is empty"),
        (b"\x00\x01\x02\xff\xfe" * 100, "is in no form that is known"),
        ("Grüße".encode("utf-16"), "is in no form that is known"),
        (b"PK\x03\x04abc", "is a zip file"),
        (b"PAR1abc", "is a Parquet file"),
        (b"BZh91AY", "is a bzip2 file"),
        (b"hello,world\n1,2\n", "is in no form that is known"),
        (b'{"a": 1}\n', r"is in no form that is known .* Its rows have: a\."),
        (b"[1, 2]", "is in no form that is known"),
        (b"[", "begins as a JSON list and is none"),
        (b"[" * 100_000, "begins as a JSON list and is none"),
        (b"{\n", "is in no form that is known"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:3d\n", "is in no form .*git-lfs"),
    ],
)
def test_no_trace_at_all(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=message):
        read(path)


def test_no_file_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"/dev/null is no regular file"):
        read(Path("/dev/null"))
    with pytest.raises(TraceError, match=r"There is no file .*missing"):
        read(tmp_path / "missing")
    with pytest.raises(TraceError, match=r"holds no \.json or \.jsonl file"):
        read(tmp_path)
    (tmp_path / "x").mkdir()
    with pytest.raises(InputError):
        read(tmp_path / "x" / "y")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b"{", "Input data was truncated"),
        (b"nonsense", "JSON is malformed"),
        (GOOD[:-1], "Input data was truncated"),
        (GOOD + b" " + GOOD, "JSON is malformed: trailing characters"),
        (b"\xff\xfe\x00", "malformed"),
        (b"null", "Expected `object`, got `null`"),
        (GOOD[:-1] + b', "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (GOOD.replace(b"1000", b"-1000"), "input_length must be a number of tokens from 1 .* -1000"),
        (GOOD.replace(b"1000", b"0"), "input_length must be a number of tokens from 1"),
        (GOOD.replace(b"1000", b"1000000000000000000"), "from 1 to 16,777,216"),
        (GOOD.replace(b"1000", b"1" * 400), "from 1 to 16,777,216|range"),
        (GOOD.replace(b"1000", b"1" * 5000), "Integer value out of range"),
        (GOOD.replace(b"1000", b"1e18"), r"Expected `int`, got `float` - at `\$.input_length`"),
        (GOOD.replace(b"1000", b"NaN"), "JSON is malformed"),
        (
            GOOD.replace(b'"output_length": 5', b'"output_length": -1'),
            "output_length must be a number of tokens",
        ),
        (GOOD.replace(b'"timestamp": 0', b'"timestamp": NaN'), "JSON is malformed"),
        (GOOD.replace(b'"timestamp": 0', b'"timestamp": 1e999'), "out of range"),
        (GOOD.replace(b'"timestamp": 0', b'"timestamp": Infinity'), "JSON is malformed"),
        (GOOD.replace(b'"timestamp": 0', b'"timestamp": 1e300'), "timestamp must be a time from 0"),
        (GOOD.replace(b'"timestamp": 0', b'"timestamp": -1'), "timestamp must be a time from 0"),
        (GOOD.replace(b'"timestamp": 0', b'"timestamp": true'), "Expected `float`, got `bool`"),
        (GOOD.replace(b'"timestamp": 0, ', b""), "missing required field `timestamp`"),
        (GOOD.replace(b"[1, 2]", b"[1, true]"), r"Expected `int`, got `bool` - at `\$.hash_ids\[1\]`"),
        (GOOD.replace(b"[1, 2]", b'[1, "2"]'), r"Expected `int`, got `str` - at `\$.hash_ids\[1\]`"),
        (GOOD.replace(b"[1, 2]", b"[1, 2.5]"), "Expected `int`, got `float`"),
        (GOOD.replace(b"[1, 2]", b"[1, null]"), "Expected `int`, got `null`"),
        (GOOD.replace(b"[1, 2]", b"[1, 2, 3]"), "1,000 tokens are 2 blocks of 512"),
        (GOOD.replace(b"[1, 2]", b"{}"), "Expected `array`, got `object`"),
    ],
)
def test_a_bad_row_is_named_or_counted(tmp_path: Path, bad: bytes, message: str) -> None:
    path = jsonl(tmp_path / "t.jsonl", [GOOD, b"", bad, GOOD])
    with pytest.raises(TraceError, match=rf"t\.jsonl, line 3: .*({message})") as caught:
        read(path)
    assert str(caught.value).endswith("Mend it, or leave rows that can't be read out with --skip-bad.")
    assert len(str(caught.value)) < 500
    trace = read(path, skip_bad=True)
    assert (len(trace.requests), trace.skipped) == (2, 1)


def test_bad_rows_come_first(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [b"what is this?", GOOD])
    assert read(path, skip_bad=True).skipped == 1
    with pytest.raises(TraceError, match="line 1: JSON is malformed"):
        read(path)


def test_nothing_but_bad_rows(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "t.jsonl", [GOOD.replace(b"1000", b"5000")] * 3)
    with pytest.raises(
        TraceError, match=r"holds no request\. Bad rows: 3; the first: .*line 1: 5,000 tokens are 10 blocks"
    ):
        read(path, skip_bad=True)


def test_a_mark_at_the_beginning_line_ends_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + GOOD + b"\r\n\r\n  \n" + GOOD)
    assert len(read(path).requests) == 2
    path.write_bytes(b"\xef\xbb\xbf" + GOOD)
    assert len(read(path).requests) == 1


def test_rows_out_of_order_are_sorted_and_equals_keep_their_order(tmp_path: Path) -> None:
    times = [3000, 1000, 3000, 2000, 1000]
    rows = [mooncake_row([n], 512, timestamp=time) for n, time in enumerate(times)]
    trace = read(jsonl(tmp_path / "t.jsonl", rows))
    assert [request.request_id for request in trace.requests] == ["1", "4", "3", "0", "2"]
    assert [request.arrival for request in trace.requests] == [0, 0, 1, 2, 2]
    assert trace.notes == ("Requests did not stand in the order of their arrival and were sorted.",)


def test_a_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_MAX_ROW", 1000)
    monkeypatch.setattr(rows_module, "_MAX_DOCUMENT", 1000)
    (tmp_path / "line").write_bytes(gzip.compress(b'{"a"' + b" " * 100_000))
    with pytest.raises(TraceError, match="has a line of more than 1,000 bytes"):
        read(tmp_path / "line")
    (tmp_path / "document").write_bytes(b"[\n" + b"1,\n" * 2000)
    with pytest.raises(TraceError, match="is one JSON document of more than 1,000 bytes"):
        read(tmp_path / "document")


def test_zstd_without_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "zstandard":
            raise ImportError(name)
        return real(name, *arguments, **more)

    path = tmp_path / "t.zst"
    path.write_bytes(packed_zstd(GOOD))
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        ConfigError, match=r"needs the package zstandard\. Install it \(pip install 'milepost\[sim"
    ):
        read(path)


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    from milepost.sim.traces.reading import read_trace

    seen: list[tuple[int, int]] = []
    read_trace(MOONCAKE, on_progress=lambda done, total: seen.append((done, total)))
    size = MOONCAKE.stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_random_damage(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of real traces changed, cut out or doubled at random: a trace or an InputError, nothing else."""
    lines = gzip.decompress(data.draw(st.sampled_from([MOONCAKE, SESSIONS])).read_bytes())[:6000]
    content = bytearray(lines)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "double", "number"]))
        if kind == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del content[at : at + data.draw(st.integers(1, 50))]
        elif kind == "double":
            content[at:at] = content[at : at + 30]
        else:
            content[at:at] = data.draw(
                st.sampled_from([b"-", b"9" * 30, b"e9", b".5", b"null", b'"', b"[", b"}"])
            )
        if not content:
            return
    path = tmp_path / "t.jsonl"
    path.write_bytes(content)
    form = data.draw(st.sampled_from(["auto", *(form for form in FORMS if form != "chat")]))
    try:
        trace = read(path, form=form, skip_bad=data.draw(st.booleans()))
    except InputError as error:
        assert str(error)  # noqa: PT017 - either way is right
    else:
        assert trace.requests
        assert all(request.num_prompt >= 1 and request.num_output >= 1 for request in trace.requests)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, packed_zstd])
def test_reading_can_stop_early(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    """What follows the first requests is not even looked at."""
    path = tmp_path / "t"
    path.write_bytes(pack(GOOD + b"\n" + GOOD + b"\nnonsense"))
    assert len(read(path, first=2).requests) == 2
