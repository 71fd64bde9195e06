"""What is recommended, over what, and how it is said."""

from __future__ import annotations

import shlex

import pytest

from milepost.cli.serve import serve
from milepost.errors import ConfigError
from milepost.sim.peer_flags import peer_flags
from milepost.sim.recommend import recommend
from tests.sim.reports.results import GB, make_result, make_sweep


def test_the_best_of_our_own_settings_at_the_budget_is_chosen() -> None:
    sweep = make_sweep()
    strong = make_result(0.9, preset="unlimited")
    chosen = recommend([*sweep, strong], None, 400 * GB)
    assert (chosen.best.policy, chosen.best.eviction) == ("adaptive", "value")
    assert chosen.best.budget_bytes == 400 * GB
    assert chosen.rivals == 4
    assert chosen.gain is None
    assert chosen.lead is not None
    assert chosen.lead.over == "turns+branch · value"
    assert chosen.lead.points == pytest.approx(2.1, abs=1e-3)
    assert not chosen.close


def test_the_unlimited_budget_is_a_budget() -> None:
    assert recommend(make_sweep(), None, None).best.budget_bytes is None


def test_gain_over_what_runs_today() -> None:
    sweep = make_sweep()
    present = sweep[1]
    chosen = recommend(sweep, present, 400 * GB)
    gain, best = chosen.gain, chosen.best
    assert gain is not None
    assert gain.over == "vllm (preset)"
    assert gain.points == pytest.approx(26.2 - 4.6, abs=1e-3)
    assert gain.tokens_saved == best.hit_tokens - present.hit_tokens
    assert gain.computed_ratio == pytest.approx((1 - 0.046) / (1 - 0.262), rel=1e-4)
    assert best.ttft is not None
    assert present.ttft is not None
    assert gain.ttft_p90_change == best.ttft.p90 - present.ttft.p90 < 0
    text = chosen.text()
    assert "+21.60 points" in text
    assert "over vllm (preset) (present)" in text
    assert any("model of another engine" in note for note in chosen.notes)


def test_what_runs_today_may_be_the_best() -> None:
    sweep = make_sweep()
    assert "which is the present setting" in recommend(sweep, sweep[-3], 400 * GB).text()


def test_the_same_setting_at_a_smaller_budget_is_a_gain() -> None:
    sweep = make_sweep()
    text = recommend(sweep, sweep[-4], 400 * GB).text()
    assert "over adaptive · value (present): +6.10 points" in text


def test_a_small_lead_is_too_close_to_call() -> None:
    chosen = recommend([make_result(0.300), make_result(0.302, policy="turns")], None, 400 * GB)
    assert chosen.best.policy == "turns"
    assert chosen.close
    assert "too close to call" in chosen.text()


def test_a_goodput_of_nothing_chooses_nothing() -> None:
    none = [make_result(0.30, goodput=0.0), make_result(0.25, policy="turns", goodput=0.0)]
    chosen = recommend(none, None, 400 * GB, measure="goodput")
    assert "No request met the limits under any setting" in chosen.text()
    some = [make_result(0.30, goodput=0.0), make_result(0.25, policy="turns", goodput=0.1)]
    assert "No request met" not in recommend(some, None, 400 * GB, measure="goodput").text()


def test_a_gain_over_the_present_that_is_none_is_called_so() -> None:
    best = make_result(0.3001)
    same = recommend([best], make_result(0.3000, preset="vllm"), 400 * GB).text()
    assert "(present): +0.01 points" in same
    assert "too close to call, no reason to change" in same
    assert (
        "the present setting is better"
        in recommend([best], make_result(0.35, preset="vllm"), 400 * GB).text()
    )
    clear = recommend([best], make_result(0.25, preset="vllm"), 400 * GB).text()
    assert "no reason to change" not in clear


def test_goodput_decides_where_it_is_asked_for() -> None:
    results = [make_result(0.30, goodput=2.0), make_result(0.25, policy="turns", goodput=3.0)]
    assert recommend(results, None, 400 * GB).best.policy == "adaptive"
    chosen = recommend(results, None, 400 * GB, measure="goodput")
    assert chosen.best.policy == "turns"
    assert chosen.lead is not None
    assert chosen.lead.goodput_ratio == 1.5
    assert "by goodput" in chosen.text()


def test_a_setting_that_refuses_requests_comes_after_those_that_serve_all() -> None:
    serving = make_result(0.20, requests=100)
    refusing = make_result(0.30, policy="turns", requests=90, refused=10)
    assert recommend([serving, refusing], None, 400 * GB).best is serving


def test_what_only_the_simulator_runs_is_no_candidate() -> None:
    bounds = [
        make_result(0.9, policy="clairvoyant"),
        make_result(0.9, eviction="clairvoyant"),
        make_result(0.9, layout="lcm"),
        make_result(0.9, preset="stateless"),
        make_result(0.9, requests=0),
        make_result(0.9, budget_bytes=1),
    ]
    plain = make_result(0.1)
    assert recommend([*bounds, plain], None, 400 * GB).best is plain
    with pytest.raises(ConfigError) as caught:
        recommend(bounds, None, 400 * GB)
    message = str(caught.value)
    assert "budget of 400 GB. Of 6 results: " in message
    for reason in (
        "2 with a policy",
        "1 with a layout",
        "1 of a preset",
        "1 without a",
        "1 at another budget",
    ):
        assert reason in message


def test_nothing_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="no results at all"):
        recommend([], None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trace": "other"}, "one trace and model"),
        ({"model": "other"}, "one trace and model"),
        ({"hardware": "other"}, "same hardware"),
        ({"requests": 5}, "same hardware, queueing and requests"),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recommend([make_result(), make_result(0.25, **changes)], None, 400 * GB)


def test_the_present_setting_must_be_of_the_same_trace() -> None:
    with pytest.raises(ConfigError, match="one trace and model"):
        recommend([make_result()], make_result(trace="other"), 400 * GB)


def test_goodput_without_times_is_refused() -> None:
    with pytest.raises(ConfigError, match="Goodput needs times"):
        recommend([make_result(goodput=None)], None, 400 * GB, measure="goodput")


def test_a_present_setting_at_another_budget_is_noted() -> None:
    notes = recommend(make_sweep(), make_sweep()[0], 400 * GB).notes
    assert any("200 GB" in note and "the budget's" in note for note in notes)


def test_our_flags_are_those_of_the_server() -> None:
    best = make_result(
        policy="turns+every(8192)", eviction="marconi(alpha=0.5)", match_unit=16, block_size=64
    )
    chosen = recommend([best], None, 400 * GB)
    words = shlex.split(" ".join(chosen.flags))
    assert words[words.index("--snapshot-policy") + 1] == "turns+every(8192)"
    assert words[words.index("--eviction") + 1] == "marconi(alpha=0.5)"
    assert words[words.index("--memory") + 1] == str(400 * GB)
    known = {name for option in serve.params for name in option.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_a_match_unit_that_is_the_traces_is_not_recommended() -> None:
    """A trace that knows tokens by 512 says nothing for keys as far apart."""
    chosen = recommend([make_result(trace_block=512, match_unit=512, block_size=512)], None, 400 * GB)
    assert not any("--match-unit" in flag or "--block-size" in flag for flag in chosen.flags)
    assert any("--prefix-match-unit 16" in peer.flags for peer in chosen.peers)
    assert any("knows tokens by 512" in note for note in chosen.notes)
    asked = recommend([make_result(trace_block=1, match_unit=64, block_size=32)], None, 400 * GB)
    assert {"--match-unit 64", "--block-size 32"} <= {*asked.flags}
    assert not any("knows tokens by" in note for note in asked.notes if "match unit" in note)


def test_nearest_flags_of_other_engines() -> None:
    vllm, sglang = peer_flags(make_result(policy="turns+every(8192)", match_unit=16))
    assert "--prefix-match-unit 16" in vllm.flags
    assert "--prefix-cache-retention-interval 8192" in vllm.flags
    assert f"--kv-cache-memory-bytes {400 * GB}" in vllm.flags
    assert any("messages" in limit for limit in vllm.limits)
    assert "--page-size 16" in sglang.flags
    assert "--mamba-full-memory-ratio 1.77" in sglang.flags
    assert any("value" in limit for limit in sglang.limits)


def test_flags_of_other_engines_follow_the_setting() -> None:
    vllm, sglang = peer_flags(
        make_result(policy="branch", eviction="lru", budget_bytes=None, kv_bytes_mean=0.0)
    )
    assert "--prefix-cache-retention-interval 0" in vllm.flags
    assert not any(flag.startswith("--kv-cache-memory-bytes") for flag in vllm.flags)
    assert not any(flag.startswith("--mamba-full-memory-ratio") for flag in sglang.flags)
    assert not any("Eviction" in limit for limit in sglang.limits)
    off = peer_flags(make_result(policy="none"))
    assert [peer.flags for peer in off] == [("--no-enable-prefix-caching",), ("--disable-radix-cache",)]
