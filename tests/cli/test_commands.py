"""What commands print and with which code they end, in this process."""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from milepost.cli import terminal
from milepost.cli.app import commands, run
from milepost.cli.options import DEFAULT_MAX_TOKENS
from milepost.config import MEMORY_SHARE, EngineConfig
from milepost.errors import ConfigError
from milepost.llm import LLM
from milepost.types import SamplingParams
from tests.llm.checkpoints import (
    ENGINE,
    ENGINE_FLAGS,
    copied,
    enlarge_tokenizer,
    put_nan,
    truncate_a_shard,
)
from tests.models.real_configs import k3_config

Capture = pytest.CaptureFixture[str]
GREEDY = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
SHORT = ("--max-tokens", "5", "--ignore-eos", *ENGINE_FLAGS)


def generate(model: Path, *arguments: str) -> int:
    return run(["generate", str(model), *SHORT, *arguments])


def error_line(capture: Capture) -> str:
    """The one line on stderr; stdout must be empty."""
    out, err = capture.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert err.count("\n") == 1
    return err.removeprefix("milepost: error: ").rstrip()


@pytest.fixture(scope="module")
def expected(quiet_k3: Path) -> dict[str, Any]:
    """What the LLM class says to the same."""
    with LLM(quiet_k3, **ENGINE) as llm:
        return {
            "raw": llm.generate(["the road", "a post"], GREEDY),
            "chat": llm.chat([{"role": "user", "content": "the road"}], GREEDY),
        }


@pytest.mark.parametrize("name", [None, *commands.commands])
def test_help_shows_examples(capsys: Capture, name: str | None) -> None:
    assert run([*([name] if name else []), "--help"]) == 0
    out, err = capsys.readouterr()
    assert "Examples:\n" in out
    assert err == ""


def test_no_words_ask_for_help(capsys: Capture) -> None:
    assert run([]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    summaries = [
        line for line in out.splitlines() if line.split()[:1] and line.split()[0] in commands.commands
    ]
    assert len(summaries) == len(commands.commands)
    assert not [line for line in summaries if line.endswith("...")], "a summary is cut off"


def test_help_gives_the_defaults(capsys: Capture) -> None:
    assert run(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    config = EngineConfig(model="x")
    assert f"Tokens of a KV block; aligned grows it in such steps. [default: {config.block_size}]" in text
    assert f"at the same time. [default: {config.max_num_seqs}]" in text
    assert f"of one step. [default: {config.max_num_batched_tokens}]" in text
    assert f"[default: {MEMORY_SHARE:.0%} of the memory available" in text


def test_a_prompt_is_continued(quiet_k3: Path, capsys: Capture, expected: dict[str, Any]) -> None:
    assert generate(quiet_k3, "--prompt", "the road") == 0
    out, err = capsys.readouterr()
    assert out == expected["raw"][0].text + "\n"
    assert err == ""


def test_a_prompt_comes_from_a_file_or_from_stdin(
    quiet_k3: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("the road")
    assert generate(quiet_k3, "--prompt-file", str(file)) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("the road"))
    assert generate(quiet_k3) == 0
    text = expected["raw"][0].text
    assert capsys.readouterr().out == f"{text}\n{text}\n"


def test_a_chat_answer_with_figures(quiet_k3: Path, capsys: Capture, expected: dict[str, Any]) -> None:
    assert generate(quiet_k3, "--chat", "--stats", "--prompt", "the road") == 0
    out, err = capsys.readouterr()
    assert out == expected["chat"].reply.content + "\n"
    usage = expected["chat"].completion.usage
    rows = [line.split("│")[1:3] for line in err.splitlines() if "│" in line]
    figures = {name.strip(): value.strip() for name, value in rows}
    assert figures["prompt tokens"] == str(usage.prompt_tokens)
    assert figures["cached of them"] == "0"
    assert figures["output tokens"] == "5"
    with LLM(quiet_k3, **ENGINE) as llm:
        # The last token drawn is not computed.
        kv_pages = llm.layout.blocks_for(usage.prompt_tokens + usage.output_tokens - 1)
        assert figures["pages of KV"].startswith(f"{kv_pages} (")
        assert figures["pages of state"].startswith(f"{llm.layout.pages_per_state} (")
        assert figures["arena"].startswith(f"{llm.config.num_pages:,} pages")
    assert {"time to first token", "decode", "page", "ready after"} <= figures.keys()


def test_several_prompts_as_text_and_as_json(
    quiet_k3: Path, capsys: Capture, expected: dict[str, Any]
) -> None:
    prompts = ("--prompt", "the road", "--prompt", "a post")
    assert generate(quiet_k3, *prompts) == 0
    first, second = expected["raw"]
    assert capsys.readouterr().out == f"==> prompt 1 <==\n{first.text}\n==> prompt 2 <==\n{second.text}\n"
    assert generate(quiet_k3, *prompts, "--json", "--logprobs", "2") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["token_ids"] for line in lines] == [list(first.token_ids), list(second.token_ids)]
    assert [line["prompt"] for line in lines] == ["the road", "a post"]
    assert lines[0]["text"] == first.text
    assert lines[0]["finish_reason"] == "length"
    assert lines[0]["usage"]["output_tokens"] == 5
    assert len(lines[0]["logprobs"][0]["top"]) == 2


def test_json_of_a_prompt_that_is_no_utf8(quiet_k3: Path, capsys: Capture) -> None:
    assert generate(quiet_k3, "--json", "--prompt", "the \udcff road") == 0
    assert json.loads(capsys.readouterr().out)["prompt"] == "the \ufffd road"


@pytest.mark.parametrize("seconds", ["nan", "-1"])
def test_a_time_to_drain_that_is_none(capsys: Capture, seconds: str) -> None:
    assert run(["serve", "nowhere", "--port", "0", "--drain-seconds", seconds]) == 2
    assert "--drain-seconds must be at least 0" in error_line(capsys)


def test_thinking_can_be_asked_for(quiet_k3: Path, capsys: Capture) -> None:
    ask = ("--chat", "--json", "--prompt", "the road")
    assert generate(quiet_k3, *ask) == 0
    assert generate(quiet_k3, *ask, "--thinking", "--system", "be brief") == 0
    plain, thinking = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert thinking["usage"]["prompt_tokens"] > plain["usage"]["prompt_tokens"] + 100
    assert "reasoning" not in plain
    assert thinking["reasoning"]


def test_piped_lines_are_a_conversation(
    quiet_k3: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    lines = "the road\n\nthe road\n/reset\nthe road\n/dance\n/exit\nnever reached\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    assert run(["chat", str(quiet_k3), *SHORT]) == 0
    out, err = capsys.readouterr()
    once = expected["chat"].reply.content
    messages = [{"role": "user", "content": "the road"}, {"role": "assistant", "content": once}]
    with LLM(quiet_k3, **ENGINE) as llm:
        twice = llm.chat([*messages, messages[0]], GREEDY).reply.content
    assert out == f"{once}\n{twice}\n{once}\n"
    assert "There is no command /dance" in err
    assert err.count("cut off by a length limit") == 3


def test_each_reply_says_what_was_cached(
    quiet_k3: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, expected: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the road\n/reset\nthe road\nthe road\n"))
    assert run(["chat", str(quiet_k3), "--stats", *SHORT]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "cached" in line]
    prompt = expected["chat"].completion.usage.prompt_tokens
    assert lines[:2] == [
        f"(prompt: 0 tokens cached, {prompt} computed; reply: 5)",
        f"(prompt: {prompt - 1} tokens cached, 1 computed; reply: 5)",
    ]
    cached = int(re.findall(r"(\d+) tokens cached", lines[2])[0])
    # The reply's text may have other tokens than were drawn; what was asked comes again.
    assert cached >= prompt - 1


def test_a_conversation_that_grows_too_long_ends_a_pipe(
    quiet_k3: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the road " * 300 + "\n"))
    assert run(["chat", str(quiet_k3), *SHORT]) == 2
    assert "at most 399 tokens" in error_line(capsys)


def test_inspect_shows_what_the_model_is(quiet_k3: Path, capsys: Capture) -> None:
    assert run(["inspect", str(quiet_k3), "--memory", "16MiB"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert run(["inspect", str(quiet_k3), "--json", "--memory", "16MiB"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["spec"]["layers"] == ["kda", "kda", "kda", "mla", "mla"]
    total = sum(data["parameters"]["by_part"].values())
    assert data["parameters"]["total"] == total
    assert str(quiet_k3) in out
    for figure in (total, data["bytes"], data["pages"]["page_bytes"], data["pages"]["state_bytes"]):
        assert f"{figure:,}" in out
    stored = sum(shard.stat().st_size for shard in quiet_k3.glob("*.safetensors"))
    assert 0 < stored - data["bytes"] - data["skipped_bytes"] < 100_000, "headers are the only difference"


def test_inspect_needs_no_shards(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "config.json").write_text(json.dumps(k3_config()))
    assert run(["inspect", str(tmp_path), "--tp", "8", "--memory", "40GiB"]) == 0
    out = capsys.readouterr().out
    assert "2,779,484,476,000" in out
    assert "1.5 TiB" in out
    assert "497,052 by config.json; no shard here" in out
    assert "24,271 and the dummy page" in out
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "experts " in line
    ]
    numbers = {row[1]: (row[0], row[-1][:14]) for row in rows if len(row) == 6}
    assert numbers == {"KDA": ("68", "1-2, 4-6, 8-10"), "MLA": ("24", "3, 7, 11, 15, ")}
    assert run(["inspect", str(tmp_path), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["num_shards"], data["bytes"]) == (0, 0)


@pytest.mark.parametrize("ranks", ["0", "-1"])
def test_inspect_refuses_no_ranks(quiet_k3: Path, capsys: Capture, ranks: str) -> None:
    assert run(["inspect", str(quiet_k3), "--tp", ranks]) == 2
    assert f"--tp must be at least 1. Given: {ranks}" in error_line(capsys)


def test_inspect_lays_pages_out_as_asked(quiet_k3: Path, capsys: Capture) -> None:
    def pages(*options: str) -> dict[str, int]:
        assert run(["inspect", str(quiet_k3), "--json", *options]) == 0
        found: dict[str, int] = json.loads(capsys.readouterr().out)["pages"]
        return found

    base = pages()
    assert pages("--block-size", "128")["page_bytes"] == 2 * base["page_bytes"]
    assert pages("--kv-dtype", "float32")["page_bytes"] == 2 * base["page_bytes"]
    assert pages("--kv-dtype", "float8")["page_bytes"] * 2 == base["page_bytes"]
    assert pages("--tp", "5")["state_bytes"] * 5 == base["state_bytes"]


def test_inspect_shows_how_the_aligned_layout_grows_the_block(quiet_k3: Path, capsys: Capture) -> None:
    arguments = ["inspect", str(quiet_k3), "--layout", "aligned", "--block-size", "8"]
    assert run([*arguments, "--json"]) == 0
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert pages["layout"] == "aligned"
    steps = pages["steps"]
    assert steps["block_size"] == pages["block_size"] >= steps["grown_block"] >= steps["state_rows"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert f"{steps['grown_block']:,} tokens hold a layer's state in steps of 8" in shown
    assert f"padded by {steps['layer_padding_bytes']:,} B" in shown


def test_a_block_longer_than_any_sequence_is_said_at_start(quiet_k3: Path, capsys: Capture) -> None:
    options = ["--layout", "aligned", "--max-model-len", "16", "--max-tokens", "2"]
    assert generate(quiet_k3, "--prompt", "abc", *options) == 0
    shown = capsys.readouterr().err
    assert "milepost: note: A KV block of " in shown
    assert "longer than max_model_len 16" in shown


def test_export_toy_writes_a_checkpoint_that_runs(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "toy"
    assert run(["export-toy", str(folder), "--family", "kimi_linear", "--seed", "3"]) == 0
    assert generate(folder, "--prompt", "the road") == 0
    capsys.readouterr()
    assert run(["export-toy", str(folder)]) == 2
    assert error_line(capsys) == f"{folder} exists. Name a folder that does not."


@pytest.mark.parametrize("trouble", ["no room", "full"])
def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    if trouble == "no room":
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: usage(1000, 1000, 0))
    else:
        import milepost.models.checkpoint_writer as writer

        def full(*_arguments: object, **_more: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(writer, "save_file", full)
    assert run(["export-toy", str(tmp_path / "toy")]) == 2
    assert "make room" in error_line(capsys).lower()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json"),
        (truncate_a_shard, "model-00001-of-00002.safetensors"),
        (enlarge_tokenizer, "Wrong tokenizer"),
        (lambda folder: (folder / "tokenizer_config.json").unlink(), "tokenizer_config.json is missing"),
        (put_nan, "not finite"),
    ],
)
def test_a_broken_checkpoint_is_one_line(
    quiet_k3: Path, tmp_path: Path, capsys: Capture, damage: Callable[[Path], object], says: str
) -> None:
    broken = copied(quiet_k3, tmp_path / "broken", damage)
    assert generate(broken, "--prompt", "the road", "--chat") == 2
    assert says in error_line(capsys)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["generate", "--promt", "x"], "No such option '--promt'. (Did you mean"),
        (["generate", "--prompt", "x", "--top-k", "many"], "'many' is not a valid integer"),
        (["generate", "--prompt", "x", "--dtype", "float23"], "Given: 'float23'. Did you mean 'float32'?"),
        (["generate", "--prompt", "x", "--kernels", "gpu"], "kernels must be one of auto, cpu, reference"),
        (["generate", "--prompt", "x", "--memory", "2GX"], "memory must be a positive number of bytes"),
        (["generate", "--prompt", "x", "--top-p", "3"], "top_p must be between 0.0 and 1.0. Given: 3.0"),
        (["generate", "--prompt", "x", "--logprobs", "2"], "--logprobs is only shown with --json"),
        (["generate", "--prompt", "x", "--system", "y"], "belong to the chat form. Add --chat"),
        (["generate", "--prompt", ""], "The prompt is empty"),
        (["generate", "--prompt-file", "nowhere.txt"], "nowhere.txt"),
        (["export-toy", "x", "--family", "llama"], "'llama' is not one of 'kimi_k3', 'kimi_linear'"),
        (["export-toy"], "Missing argument 'FOLDER'. See 'milepost export-toy --help'"),
        (["inspect", "--kv-dtype", "int4"], "--kv-dtype must be one of"),
        (["inspect", "--layout", "pages"], "--layout must be one of paged, aligned"),
        (["generate", "--prompt", "x", "--layout", "align"], "Given: 'align'. Did you mean 'aligned'?"),
        (["serve", "--port", "99999999"], "--port must be between 0 and 65535. Given: 99999999"),
        (["serve", "--log-level", "loud"], "--log-level must be one of"),
        (
            ["generate", "--prompt-file", "nowhere"],
            "No such file or directory. See 'milepost generate --help'.",
        ),
        (["generate", "a", "b"], "unexpected extra argument (b). See 'milepost generate --help'."),
        (["generate", "--promt", "x"], "'--prompt-file'?) See 'milepost generate --help'."),
        (["juggle"], "No such command 'juggle'. See 'milepost --help'"),
    ],
)
def test_wrong_usage_is_one_line(capsys: Capture, arguments: list[str], says: str) -> None:
    assert run(arguments) == 2
    assert says in error_line(capsys)


def test_a_prompt_that_is_not_text_is_one_line(quiet_k3: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "prompt.txt"
    file.write_bytes(b"the \xff road")
    assert generate(quiet_k3, "--prompt-file", str(file)) == 2
    assert "prompt.txt must be UTF-8 text" in error_line(capsys)


def test_a_prompt_over_the_limit_is_one_line(quiet_k3: Path, capsys: Capture) -> None:
    assert generate(quiet_k3, "--prompt", "abcdefgh " * 100) == 2
    assert "at most 399 tokens" in error_line(capsys)


def test_a_layout_that_does_not_fit_is_one_line(quiet_k3: Path, capsys: Capture) -> None:
    assert run(["inspect", str(quiet_k3), "--tp", "3"]) == 2
    assert "--tp must divide the 5 KDA heads. Given: 3" in error_line(capsys)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object, **_more: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("milepost.models.summary.summarize", broken)
    with pytest.raises(ZeroDivisionError):
        run(["inspect"])


def test_the_bar_is_only_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal.progress_bar("Loading") as nothing:
        assert nothing is None
    screen = io.StringIO()
    monkeypatch.setattr(terminal, "notes", lambda: Console(file=screen, force_terminal=True, width=100))
    with terminal.progress_bar("Loading") as show:
        assert show is not None
        show(50_000, 100_000)
        show(100_000, 100_000)
    assert "Loading" in screen.getvalue()
    assert "100.0/100.0" in screen.getvalue()


def test_the_default_reply_is_bounded() -> None:
    assert 0 < DEFAULT_MAX_TOKENS <= 4096


def test_the_flags_of_the_cache_reach_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[EngineConfig] = []

    def take(config: EngineConfig) -> None:
        seen.append(config)
        raise ConfigError("seen")

    monkeypatch.setattr("milepost.cli.generate.open_llm", take)
    given = ("--match-unit", "32", "--snapshot-policy", "last", "--eviction", "lru", "--host-cache", "1MiB")
    more = ("--disk-cache", "cache,2MiB", "--cache-key", "ab" * 16, "--no-wait-for-leaders")
    assert run(["generate", "x", "--prompt", "a", *given, *more]) == 2
    monkeypatch.setenv("MILEPOST_CACHE_KEY", "cd" * 16)
    assert run(["generate", "x", "--prompt", "a", "--no-prefix-cache", "--match-unit", "block"]) == 2
    expected = EngineConfig(
        model="x",
        match_unit=32,
        snapshot_policy="last",
        eviction="lru",
        host_cache="1MiB",
        disk_cache="cache,2MiB",
        cache_key="ab" * 16,
        wait_for_leaders=False,
    )
    off = EngineConfig(model="x", prefix_cache=False, match_unit="block", cache_key="cd" * 16)
    assert seen == [expected, off]


def test_a_wrong_flag_of_the_cache_is_one_line(capsys: Capture) -> None:
    assert run(["generate", "x", "--prompt", "a", "--match-unit", "blocks"]) == 2
    assert error_line(capsys) == "match_unit must be a number of tokens or \"block\". Given: 'blocks'."
