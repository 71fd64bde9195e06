"""The file of requests: whole or not at all, whoever else writes it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from milepost.cli.per_request import PerRequestFile
from milepost.sim.runs import RequestOutcome, RunSpec

OUTCOME = RequestOutcome(request_id="a", arrival=0.0, prompt_tokens=3, hit_tokens=1)


def test_two_runs_at_once_may_write_the_same_file(tmp_path: Path) -> None:
    path, specs = tmp_path / "requests.jsonl", [RunSpec(), RunSpec()]
    with PerRequestFile(path, specs) as one, PerRequestFile(path, specs) as other:
        for index in (1, 0):
            one.add(index, [OUTCOME])
            other.add(index, [OUTCOME] * 2)
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [line.split(",")[0] for line in lines] == ['{"point":0', '{"point":1']
    assert [*tmp_path.iterdir()] == [path]


def test_an_older_file_stays_when_a_run_fails(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("older", encoding="utf-8")
    with suppress(KeyboardInterrupt), PerRequestFile(path, [RunSpec()]) as file:
        file.add(0, [OUTCOME])
        raise KeyboardInterrupt
    assert path.read_text(encoding="utf-8") == "older"
    assert [*tmp_path.iterdir()] == [path]
