"""The runner on a model that adds up what it may read: order of a step, rows, failures, closing."""

from __future__ import annotations

import weakref

import pytest
import torch

from milepost.config import EngineConfig
from milepost.engine.executor import Executor
from milepost.errors import EngineStoppedError, InvariantError
from milepost.memory.layout import PagedLayout, paged_layout
from milepost.memory.sizing import resolve
from milepost.model_spec import ModelSpec
from milepost.models.inputs import StepInputs
from milepost.models.outputs import StepOutput
from milepost.runtime.model_runner import ModelRunner
from milepost.types import Batch, NewRequest, Row, SamplingParams, Tier, Transfer

VOCAB = 11


class SumModel:
    """Votes for (sum of the row's tokens, all steps together) mod vocab; KV and state hold the sum."""

    def __init__(self) -> None:
        self.poisoned_step: int | None = None
        self.honest = True  # says which rows are not finite
        self.steps = 0

    def forward(self, inputs: StepInputs) -> StepOutput:
        offsets = inputs.ragged.cu_seqlens.tolist()
        tiles = inputs.state.tile_ids(0, 1)[:, 0]
        sums = torch.where(inputs.ragged.starts == 0, 0.0, inputs.state.recurrent[tiles, 0, 0])
        for row in range(len(offsets) - 1):
            sums[row] += inputs.token_ids[offsets[row] : offsets[row + 1]].sum()
            if self.poisoned_step == self.steps and row == 0:
                sums[row] = float("nan")
        inputs.state.recurrent[tiles, 0, 0] = sums
        self.steps += 1
        last = torch.tensor(offsets[1:]) - 1
        sampled = torch.isin(last, inputs.sample_index)
        votes = sums[sampled][:, None] % VOCAB == torch.arange(VOCAB)
        finite = sums.isfinite() if self.honest else torch.ones_like(sums, dtype=torch.bool)
        return StepOutput(torch.where(sums[sampled].isnan()[:, None], torch.nan, votes.float()), finite)


def runner_of(
    layout: PagedLayout, model: SumModel | None = None, *, check_states: bool = False
) -> ModelRunner:
    return ModelRunner(model or SumModel(), layout, 40, check_states=check_states)


def new(name: str) -> NewRequest:
    return NewRequest(
        request_id=name, prompt_token_ids=(1, 2), sampling=SamplingParams(temperature=0.0, logprobs=1)
    )


def chunk(
    name: str, layout: PagedLayout, tokens: tuple[int, ...], start: int = 0, drawn: int | None = 0
) -> Row:
    """A row of request "a" or "b" on pages of its own; `drawn` None does not sample."""
    first = 1 + "ab".index(name) * (layout.pages_per_state + 2)
    return Row(
        request_id=name,
        start=start,
        token_ids=tokens,
        state_table=range(first, first + layout.pages_per_state),
        block_table=range(first + layout.pages_per_state, first + layout.pages_per_state + 2),
        samples=drawn is not None,
        num_output_tokens=drawn or 0,
    )


def test_warming_up_touches_the_dummy_page_only(layout: PagedLayout) -> None:
    model = SumModel()
    runner = runner_of(layout, model)
    runner.arena.poison_all()
    runner.warm_up()
    assert model.steps == 2, "a step of all kinds of rows, and one of a lone decode"
    pages = runner.arena.bytes.view(runner.arena.num_pages, -1)
    assert (pages[1:] == 0xFF).all()
    assert not (pages[0] == 0xFF).all()


def test_chunks_and_decodes_share_steps(layout: PagedLayout) -> None:
    runner: Executor = runner_of(layout)
    first = runner.run(
        Batch(step=0, new_requests=(new("a"),), rows=(chunk("a", layout, (1, 2), drawn=None),))
    )
    assert (first.step, first.rows[0].request_id, first.rows[0].token_ids) == (0, "a", ())
    rows = (chunk("b", layout, (5, 5)), chunk("a", layout, (4,), start=2))
    second = runner.run(Batch(step=1, new_requests=(new("b"),), rows=rows))
    assert [(r.request_id, r.token_ids, r.error) for r in second.rows] == [
        ("b", (10,), None),
        ("a", (7,), None),
    ]
    assert second.rows[1].logprobs[0].token_id == 7
    third = runner.run(Batch(step=2, rows=(chunk("a", layout, (7,), start=3, drawn=1),), released=("b",)))
    assert third.rows[0].token_ids == (14 % VOCAB,)


def test_an_id_may_come_back_in_the_batch_that_releases_it(layout: PagedLayout) -> None:
    runner = runner_of(layout)
    runner.run(Batch(step=0, new_requests=(new("a"),), rows=(chunk("a", layout, (1,)),)))
    batch = Batch(step=1, released=("a",), new_requests=(new("a"),), rows=(chunk("a", layout, (3,)),))
    assert runner.run(batch).rows[0].token_ids == (3,)


def test_scrubs_run_before_rows(layout: PagedLayout) -> None:
    runner = runner_of(layout)
    row = chunk("a", layout, (1,))
    runner.arena.poison([*row.state_table, *row.block_table, 39])
    runner.run(Batch(step=0, new_requests=(new("a"),), rows=(row,), scrubs=(*row.state_table, 39)))
    assert not runner.arena.kv[39].any()
    assert runner.arena.kv[row.block_table[0]].isnan().all()
    assert float(runner.arena.recurrent[row.state_table[0] * layout.tiles_per_page, 0, 0]) == 1.0


@pytest.mark.parametrize(
    ("honest", "check_states", "message"),
    [
        (True, False, "hidden states are not finite"),
        (True, True, "recurrent state is not finite"),
        (False, True, "recurrent state is not finite"),
        (False, False, "logits are not finite"),
    ],
)
def test_a_broken_row_fails_alone(
    layout: PagedLayout, honest: bool, check_states: bool, message: str
) -> None:
    model = SumModel()
    model.poisoned_step, model.honest = 0, honest
    runner = runner_of(layout, model, check_states=check_states)
    rows = (chunk("a", layout, (1, 2)), chunk("b", layout, (3,)))
    result = runner.run(Batch(step=0, new_requests=(new("a"), new("b")), rows=rows))
    broken, fine = result.rows
    assert broken.token_ids == ()
    assert broken.error is not None
    assert message in broken.error
    assert "after 2 tokens" in broken.error
    assert (fine.token_ids, fine.error) == ((3,), None)


def test_a_row_that_does_not_sample_fails_too(layout: PagedLayout) -> None:
    """R50: what a chunk wrote would be published long before logits could show that it is broken."""
    for honest, check_states in ((True, False), (False, True), (False, False)):
        model = SumModel()
        model.poisoned_step, model.honest = 0, honest
        runner = runner_of(layout, model, check_states=check_states)
        row = chunk("a", layout, (1,), drawn=None)
        (result,) = runner.run(Batch(step=0, new_requests=(new("a"),), rows=(row,))).rows
        assert (result.error is not None) == (honest or check_states)


def test_copies_run_after_scrubs_and_before_rows(layout: PagedLayout) -> None:
    runner = runner_of(layout)
    runner.run(Batch(step=0, new_requests=(new("a"),), rows=(chunk("a", layout, (7,)),)))
    held, row = chunk("a", layout, (7,)), chunk("b", layout, (2,), start=1)
    copies = tuple(zip(held.state_table, row.state_table, strict=True))
    batch = Batch(step=1, new_requests=(new("b"),), rows=(row,), scrubs=tuple(row.state_table), copies=copies)
    assert runner.run(batch).rows[0].token_ids == (9,)
    runner.run(Batch(step=2, rows=(), copies=((row.state_table[0], 39),)))
    assert float(runner.arena.recurrent[39 * layout.tiles_per_page, 0, 0]) == 9.0


def test_other_tiers_are_not_the_runners(layout: PagedLayout) -> None:
    transfer = Transfer(transfer_id=1, source=Tier.ARENA, target=Tier.HOST, pages=((1, 1),))
    for batch in (Batch(step=4, rows=(), transfers=(transfer,)), Batch(step=4, rows=(), waits=True)):
        with pytest.raises(InvariantError, match=r"Step 4 has \d transfers .* cache in no other tier"):
            runner_of(layout).run(batch)


def test_a_batch_without_rows_still_forgets(layout: PagedLayout) -> None:
    runner = runner_of(layout)
    runner.run(Batch(step=0, new_requests=(new("a"),), rows=(chunk("a", layout, (1,)),)))
    assert runner.run(Batch(step=1, rows=(), released=("a",))).rows == ()
    with pytest.raises(InvariantError, match="never announced"):
        runner.run(Batch(step=2, rows=(chunk("a", layout, (1,), start=1, drawn=1),)))


def test_output_of_a_wrong_shape_is_the_models_fault(layout: PagedLayout) -> None:
    class Wrong(SumModel):
        def forward(self, inputs: StepInputs) -> StepOutput:
            return StepOutput(torch.zeros(samples, VOCAB), torch.ones(3 - samples, dtype=torch.bool))

    batch = Batch(step=0, new_requests=(new("a"),), rows=(chunk("a", layout, (1,)),))
    samples = 2
    with pytest.raises(InvariantError, match=r"logits for 1 rows. Given: shape \(2, 11\)"):
        runner_of(layout, Wrong()).run(batch)
    samples = 1
    with pytest.raises(InvariantError, match=r"1 rows whether they are finite. Given: shape \(2,\)"):
        runner_of(layout, Wrong()).run(batch)


def test_a_closed_runner_says_so(layout: PagedLayout) -> None:
    runner = runner_of(layout)
    arena = weakref.ref(runner.arena)
    runner.close()
    runner.close()
    assert arena() is None  # nothing else holds the memory
    with pytest.raises(EngineStoppedError, match="closed"):
        runner.run(Batch(step=0, rows=()))


def test_a_runner_from_a_config_has_its_dtypes(spec: ModelSpec) -> None:
    config = EngineConfig(model="m", memory="1MiB", dtype="bfloat16", kv_dtype="float32")
    layout = paged_layout(spec, **config.layout_options())
    runner = ModelRunner.from_config(SumModel(), layout, resolve(config, spec, layout))
    arena = runner.arena
    assert (arena.kv.dtype, arena.conv.dtype, arena.recurrent.dtype) == (
        torch.float32,
        torch.bfloat16,
        torch.float32,
    )
    assert arena.num_pages == (1 << 20) // layout.page_bytes
