"""The options of every plan: which model, on which hardware, divided how, in which dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from milepost.cli.option_groups import option_group, with_options
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.planner.deployment import KV_DTYPES, STATE_DTYPES, Deployment

__all__ = ["deployment_options", "take_deployment"]

F = TypeVar("F", bound=Callable[..., Any])

_deployment = option_group("What is deployed")
_DEFAULTS = Deployment()

_FLAGS = {
    "model": "--model",
    "hardware": "--hardware",
    "tensor_parallel": "--tp",
    "data_parallel": "--dp",
    "expert_parallel": "--ep",
    "context_parallel": "--cp",
    "kv_dtype": "--kv-dtype",
    "state_dtype": "--state-dtype",
    "memory_share": "--memory-share",
}
_LEAST = {"tensor_parallel": 1, "data_parallel": 0, "expert_parallel": 0, "context_parallel": 1}
_MOST_RANKS = 1 << 20

_OPTIONS = (
    _deployment(
        "--model",
        default=_DEFAULTS.model,
        show_default=True,
        metavar="NAME|PATH",
        help="A known model, or a config.json or its folder; weights are not needed.",
    ),
    _deployment(
        "--hardware",
        default=_DEFAULTS.hardware,
        metavar="NAME|PATH",
        help="A name or a description's path.  [default: what suits the model]",
    ),
    _deployment(
        "--tp",
        "tensor_parallel",
        type=int,
        default=_DEFAULTS.tensor_parallel,
        show_default=True,
        metavar="N",
        help="Ranks that share the heads of a sequence.",
    ),
    _deployment(
        "--dp",
        "data_parallel",
        type=int,
        default=_DEFAULTS.data_parallel,
        metavar="N",
        help="Groups of ranks, each with its own sequences.  [default: the fewest that hold the weights]",
    ),
    _deployment(
        "--ep",
        "expert_parallel",
        type=int,
        default=_DEFAULTS.expert_parallel,
        metavar="N",
        help="Ranks among which the experts are divided.  [default: all]",
    ),
    _deployment(
        "--cp",
        "context_parallel",
        type=int,
        default=_DEFAULTS.context_parallel,
        show_default=True,
        metavar="N",
        help="Of the --tp ranks, those that share a sequence's KV by tokens.",
    ),
    _deployment(
        "--kv-dtype",
        default=_DEFAULTS.kv_dtype,
        show_default=True,
        metavar="|".join(KV_DTYPES),
        help="Cached KV.",
    ),
    _deployment(
        "--state-dtype",
        default=_DEFAULTS.state_dtype,
        show_default=True,
        metavar="|".join(STATE_DTYPES),
        help="Recurrent states.",
    ),
    _deployment(
        "--memory-share",
        type=float,
        default=_DEFAULTS.memory_share,
        show_default=True,
        metavar="SHARE",
        help="Of a device's memory, what weights, states and KV may take together.",
    ),
)


def deployment_options(command: F) -> F:
    """The options of a deployment; the command hands its keyword arguments to `take_deployment`."""
    return with_options(command, _OPTIONS)


def take_deployment(options: dict[str, Any]) -> Deployment:
    """Remove the deployment's options from `options`.

    Raises:
        ConfigError: a value that no model could have; what a model allows is the planner's to check.
    """
    given = {name: options.pop(name) for name in _FLAGS}
    for name, least in _LEAST.items():
        if not least <= given[name] <= _MOST_RANKS:
            raise ConfigError(f"{_FLAGS[name]} must be {least} to {_MOST_RANKS:,}. Given: {given[name]}.")
    for name, known in (("kv_dtype", KV_DTYPES), ("state_dtype", STATE_DTYPES)):
        if given[name] not in known:
            raise ConfigError(one_of(_FLAGS[name], given[name], known))
    if not 0 < given["memory_share"] <= 1:
        raise ConfigError(
            f"--memory-share must be a share above 0 and at most 1. Given: {given['memory_share']}."
        )
    return Deployment(**given)
