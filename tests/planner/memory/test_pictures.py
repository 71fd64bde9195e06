"""Pictures: what they draw is what the layout says, for any model, in a few lines."""

from __future__ import annotations

import msgspec
import pytest

from milepost.memory.aligned import AlignedLayout
from milepost.planner.deployment import Deployment
from milepost.planner.memory.layouts import lay_out
from milepost.planner.memory.pictures import pictures
from milepost.planner.memory.plan import plan_memory, plan_memory_of
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.memory.rank_sizes import rank_shape
from milepost.planner.memory.report import memory_report
from milepost.planner.memory.spans import page_spans, state_picture
from milepost.planner.render.drawings import drawing_html
from milepost.shapes.names import SHAPES, find_shape
from tests.planner.memory.plain_models import ATTENTION_ONLY

CASES = [
    *(("kimi-k3", 1), ("kimi-k3", 8), ("kimi-linear", 1), ("kimi-linear", 4), ("kimi-linear", 8)),
    *(("milepost-toy-k3", 1), ("qwen3.5-4b", 1), ("qwen3.5-397b-a17b", 4), ("nemotron-3-nano", 2)),
]


@pytest.mark.parametrize(("model", "ranks"), CASES)
@pytest.mark.parametrize("name", ["paged", "aligned", "lcm"])
def test_spans_fill_the_pages_and_hold_every_layer(model: str, ranks: int, name: str) -> None:
    question = MemoryQuestion(deployment=Deployment(model=model, tensor_parallel=ranks), drafts=1)
    shape = rank_shape(find_shape(model)[1], question.deployment, question.drafts)
    layout = lay_out(name, shape, question)
    assert layout is not None
    assert shape.recurrent is not None
    layer = layout.state_bytes // shape.recurrent_layers
    window = shape.recurrent.conv_window * shape.recurrent.conv_channels(ranks) * 2
    picture = state_picture(layout, layer, window)
    ends = [0]
    for span in picture.spans:
        assert span.start == ends[-1] < span.end
        ends.append(span.end)
    assert ends[-1] == picture.pages * picture.page_bytes
    sums = {"matrices": 0, "window": 0, "padding": 0}
    for span in picture.spans:
        sums[span.kind] += span.end - span.start
    assert sums["matrices"] == shape.recurrent_layers * (layer - window)
    assert sums["window"] == shape.recurrent_layers * window
    assert sums["padding"] == ends[-1] - layout.state_bytes
    for page in range(picture.pages):
        assert sum(span.end - span.start for span in page_spans(picture, page)) == picture.page_bytes


def test_each_layer_of_an_aligned_state_starts_a_slot() -> None:
    question = MemoryQuestion(deployment=Deployment(tensor_parallel=8), layout="aligned")
    shape = rank_shape(find_shape("kimi-k3")[1], question.deployment, 0)
    layout = lay_out("aligned", shape, question)
    assert isinstance(layout, AlignedLayout)
    picture = state_picture(layout, 814_080, 27_648)
    assert picture.slots == 24
    starts = [span.start for span in picture.spans if span.kind == "matrices"]
    assert starts == [slot * layout.slot_bytes for slot in range(69)]


@pytest.mark.parametrize(("model", "ranks"), CASES)
def test_drawings_are_small_and_well_formed(model: str, ranks: int) -> None:
    deployment = Deployment(model=model, tensor_parallel=ranks)
    found = list(pictures(plan_memory(MemoryQuestion(deployment=deployment, compare=True))))
    assert len(found) == 4
    for drawing in found:
        drawing_html(drawing)  # refuses what is not well-formed or could act
        assert len(drawing.svg) < 120_000
        lines = drawing.text.splitlines()
        assert len(lines) <= 13
        assert max(map(len, lines)) < 130


def test_the_steps_show_what_the_layout_counts() -> None:
    plan = plan_memory(MemoryQuestion(deployment=Deployment(tensor_parallel=8), layout="aligned"))
    steps, state = pictures(plan)
    assert "12 x 64 = 768 tokens" in steps.text
    assert "padding 70.66 kB (8.68%)" in steps.text
    assert "21 layers, 3 empty" in steps.text
    assert state.title == "A state over 3 pages (aligned)"
    assert "layers 48-68" in state.text


def test_a_model_without_states_has_no_pictures_and_a_report() -> None:
    plan = plan_memory_of("mla", ATTENTION_ONLY, MemoryQuestion(deployment=Deployment(tensor_parallel=8)))
    assert not list(pictures(plan))
    report = memory_report(plan)
    assert report.sections[2].title == "Layout plain"
    for section in report.sections:
        for table in section.tables:
            assert {len(row) for row in table.rows} == {len(table.columns)}


def test_a_report_has_a_row_for_each_context_and_its_derivations() -> None:
    question = MemoryQuestion(
        deployment=Deployment(tensor_parallel=2), compare=True, contexts=(5_000, 1 << 20)
    )
    plan = plan_memory(question)
    report = memory_report(plan)
    (table,) = report.sections[3].tables
    assert [row[0] for row in table.rows] == ["5000", "1M"]
    assert table.columns[-2].name == f"paged, all {plan.data_parallel} groups"
    assert report.derivations == plan.derivations
    (plot,) = report.sections[3].plots
    assert all(value > 0 for series in plot.series for value in series.y)
    assert msgspec.json.decode(msgspec.json.encode(plan))["layouts"][0]["name"] == "paged"


@pytest.mark.parametrize("model", sorted(SHAPES))
def test_every_known_model_has_a_plan_and_a_report(model: str) -> None:
    plan = plan_memory(MemoryQuestion(deployment=Deployment(model=model), compare=True))
    report = memory_report(plan)
    assert plan.device.parameters > 0
    assert len(report.sections) == 4
    states = plan.sizes.state_bytes > 0
    assert [layout.name for layout in plan.layouts] == (["paged", "aligned", "lcm"] if states else ["plain"])
    assert len(report.sections[2].drawings) == (4 if states else 0)
    for row in plan.batches:
        assert all(count <= row.ideal for count in row.by_layout)
