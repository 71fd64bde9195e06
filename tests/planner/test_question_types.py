"""Questions made in Python, whose fields nothing has checked."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.errors import ConfigError
from milepost.planner.disagg.planning import plan_disagg
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.moe.plan import plan_moe
from milepost.planner.moe.question import MoeQuestion


@pytest.mark.parametrize(
    "fields",
    [
        *({"lengths": 8192}, {"slots": "many"}, {"slots": None}, {"slots": 10**400}),
        *({"fleet": 4}, {"fleet": (4,)}, {"against": 1}, {"deployment": 1}),
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_disaggregation_refuses_other_types(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="The fields of DisaggQuestion must be of their types"):
        plan_disagg(DisaggQuestion(**fields))


@pytest.mark.parametrize("fields", [{"load": 1}, {"sms": "many"}, {"sms": None}, {"deployment": 1}])
def test_expert_parallelism_refuses_other_types(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="The fields of MoeQuestion must be of their types"):
        plan_moe(MoeQuestion(**fields))
