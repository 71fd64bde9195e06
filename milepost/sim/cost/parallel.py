"""Which divisions of a model among ranks there are.

tensor_parallel     divides the heads of every layer
expert_parallel     whole tensor-parallel groups share one copy of the experts, and copies are alike
context_parallel    of the tensor-parallel ranks, those that share a context
"""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.shapes.of_spec import shape_of
from milepost.shapes.shape import ModelShape

__all__ = ["check_parallel", "divides_heads", "division_text"]

MOST_GROUPS = 1 << 20
"""More than anybody has, and few enough to count over."""


def check_parallel(
    model: ModelSpec | ModelShape,
    tensor_parallel: int,
    data_parallel: int | None = None,
    *,
    expert_parallel: int = 0,
    context_parallel: int = 1,
) -> None:
    """Refuse ranks that can't divide a model.

    Args:
        model: the model.
        tensor_parallel: ranks that share the heads of one sequence.
        data_parallel: such groups; None where their number is not known yet.
        expert_parallel: ranks that share one copy of the experts; 0 for all.
        context_parallel: of the tensor-parallel ranks, those that share a context by tokens.

    Raises:
        ConfigError: a number is below 1 (`expert_parallel` below 0), or `data_parallel` above
            `MOST_GROUPS`; `tensor_parallel` does not divide the heads, `context_parallel` does not divide
            `tensor_parallel`; or `expert_parallel` is no number of whole groups, does not divide the
            ranks, or is more than there are experts. With the nearest that can be.
    """
    for name, value, lowest in (
        ("tensor_parallel", tensor_parallel, 1),
        ("data_parallel", data_parallel, 1),
        ("expert_parallel", expert_parallel, 0),
        ("context_parallel", context_parallel, 1),
    ):
        if value is not None and value < lowest:
            raise ConfigError(f"{name} must be at least {lowest}. Given: {value}.")
    if data_parallel is not None and data_parallel > MOST_GROUPS:
        raise ConfigError(f"data_parallel must be at most {MOST_GROUPS:,}. Given: {data_parallel:,}.")
    shape = shape_of(model)
    heads = {
        f"{layer.heads} {layer.kind.value} heads": layer.heads
        for layer in (shape.recurrent, shape.attention)
        if layer is not None
    }
    _must_divide("tensor_parallel", tensor_parallel, heads)
    ranks = {f"{tensor_parallel} tensor-parallel ranks": tensor_parallel}
    _must_divide("context_parallel", context_parallel, ranks)
    if expert_parallel or (shape.experts is not None and data_parallel):
        _check_experts(shape, tensor_parallel, data_parallel, expert_parallel)


def divides_heads(shape: ModelShape, ranks: int) -> bool:
    """Whether so many ranks can share the heads of every layer."""
    return not any(layer.heads % ranks for layer in (shape.recurrent, shape.attention) if layer is not None)


def division_text(tensor_parallel: int, data_parallel: int) -> str:
    """How a division is written: "TP2 x DP8"."""
    return f"TP{tensor_parallel} x DP{data_parallel}"


def _check_experts(shape: ModelShape, tensor_parallel: int, data_parallel: int | None, given: int) -> None:
    if shape.experts is None:
        raise ConfigError(f"expert_parallel must be 0 for a model without experts. Given: {given}.")
    most = max(shape.experts.num_experts, tensor_parallel)
    sharing = given or tensor_parallel * (data_parallel or 1)
    # Without a number of groups any number of whole ones will do, up to an expert on each rank.
    fitting = [
        n * tensor_parallel
        for n in range(1, most // tensor_parallel + 1)
        if not (data_parallel and data_parallel % n)
    ]
    if sharing in fitting:
        return
    near = min(fitting, key=lambda n: abs(n - sharing))
    among = f", divide the {tensor_parallel * data_parallel} ranks" if data_parallel else ""
    raise ConfigError(
        f"expert_parallel must be whole groups of {tensor_parallel} ranks{among}, and leave each rank an "
        f"expert. Given: {given or f'all {sharing}'}. The nearest that does: {near}."
    )


def _must_divide(option: str, given: int, wholes: dict[str, int]) -> None:
    counts = wholes.values()
    if not any(count % given for count in counts):
        return
    fitting = [n for n in range(1, min(counts) + 1) if not any(count % n for count in counts)]
    near = min(fitting, key=lambda n: abs(n - given))
    raise ConfigError(
        f"{option} must divide the {' and the '.join(wholes)}. Given: {given}. The nearest that does: {near}."
    )
