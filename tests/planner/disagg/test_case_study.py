"""Published deployments by the planner's own formulas."""

from __future__ import annotations

import pytest

from milepost.planner.disagg.case_study import aiconfigurator_case, prfaas_case
from milepost.planner.disagg.published import AICONFIGURATOR, PRFAAS


def test_prefill_as_a_service_comes_out_of_its_profile() -> None:
    """Threshold and gains of arXiv:2604.15039; H20's prefill over H200's is fitted to its baseline."""
    found = prfaas_case()
    fleet = found.fleet
    assert found.prompt_tokens == pytest.approx(27_000, rel=0.03)
    # The baseline's division and rate: the rate is what was fitted.
    assert fleet.local_only.local_prefill_instances == 9
    assert fleet.local_only.requests_per_second == pytest.approx(2.11)
    # The others are results.
    assert fleet.offloaded.threshold_tokens == pytest.approx(PRFAAS.threshold_tokens, rel=0.01)
    assert fleet.offloaded.remote_share == pytest.approx(PRFAAS.remote_share, abs=0.005)
    assert fleet.gain_ratio == pytest.approx(PRFAAS.gain_ratio, rel=0.04)
    assert fleet.naive_gain_ratio == pytest.approx(PRFAAS.naive_gain_ratio, rel=0.04)
    assert fleet.all_remote.requests_per_second == pytest.approx(PRFAAS.naive_requests_per_second, rel=0.04)
    # "13 Gbit/s" of 100.
    assert fleet.offloaded.sent_bytes_per_second * 8 == pytest.approx(13e9, rel=0.1)


def test_aiconfigurators_division_is_planned_as_it_is() -> None:
    plan = aiconfigurator_case()
    balance = plan.balance
    assert (balance.prefill_instances, balance.decode_instances, balance.devices) == (2, 1, 32)
    assert (plan.prefill.tensor_parallel, plan.prefill.data_parallel) == (2, 4)
    assert (plan.decode.tensor_parallel, plan.decode.data_parallel) == (2, 8)
    assert AICONFIGURATOR.tokens_per_second_per_device == pytest.approx(
        AICONFIGURATOR.requests_per_second * 1024 / 32, rel=1e-3
    )
    # No roofline is held to another's here: docs/plan.md has both and their ratio.
    assert balance.output_tokens_per_second_per_device > 0
