"""Marks everything here as ``oracle`` and gives the tests their subject."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.oracle.subjects import SUBJECTS, Logits


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.oracle)
            # Other people's warnings are theirs to mend.
            item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Logits:
    return SUBJECTS[request.param]
