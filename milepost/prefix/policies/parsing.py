"""Snapshot policies by name: ``turns+branch+every(8192)``."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from milepost.byte_counts import format_bytes, parse_bytes
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.prefix.plan import SnapshotPolicy
from milepost.prefix.policies.adaptive import SPARE_PERIOD, Adaptive
from milepost.prefix.policies.budget import Budget
from milepost.prefix.policies.combined import Combined
from milepost.prefix.policies.fixed import Branch, Every, Last, NoSnapshots, PromptTail, Turns
from milepost.prefix.terms import Term, parse_terms

__all__ = ["POLICY_NAMES", "parse_policy"]

_OPTION = "snapshot_policy"


class _Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """What a budget in bytes is counted with."""

    state_bytes: int
    budget_bytes: int


def parse_policy(text: str, *, state_bytes: int = 0, budget_bytes: int = 0) -> SnapshotPolicy:
    """The policy that `text` names.

    ``none``, ``every(N)``, ``last``, ``prompt-tail``, ``turns``, ``branch``, ``budget``, ``budget(512MiB)``,
    ``budget(snapshots=N)``, ``adaptive``, ``adaptive(spare=N)``, or several of them joined by ``+``.

    Args:
        text: the policy as it is written on the command line.
        state_bytes: bytes of one snapshot; 0 if unknown. Needed by a budget in bytes.
        budget_bytes: bytes of snapshots that one prompt may leave, for ``budget`` without a parameter.

    Raises:
        ConfigError: an unknown name (with the nearest match), a wrong parameter, or the same policy twice.
    """
    sizes = _Sizes(state_bytes=state_bytes, budget_bytes=budget_bytes)
    policies = [_build(term, sizes) for term in parse_terms(_OPTION, text)]
    names = [policy.name for policy in policies]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{_OPTION} names {twice[0]} twice; leave one out. Given: {text!r:.100}.")
    if len(policies) == 1:
        return policies[0]
    if NoSnapshots.name in names:
        raise ConfigError(f"{_OPTION}: none stands alone; leave it out. Given: {text!r:.100}.")
    return Combined(policies)


def _build(term: Term, sizes: _Sizes) -> SnapshotPolicy:
    builder = _BUILDERS.get(term.name)
    if builder is None:
        raise ConfigError(one_of(_OPTION, term.name, POLICY_NAMES))
    return builder(term, sizes)


def _plain(policy: Callable[[], SnapshotPolicy]) -> Callable[[Term, _Sizes], SnapshotPolicy]:
    def build(term: Term, _sizes: _Sizes) -> SnapshotPolicy:
        term.bind(())
        return policy()

    return build


def _every(term: Term, _sizes: _Sizes) -> SnapshotPolicy:
    given = term.bind(("period",)).get("period")
    if given is None:
        raise ConfigError(f"{_OPTION}: every needs a period in tokens, such as every(8192). Given: none.")
    return Every(_whole_number("every's period", given))


def _adaptive(term: Term, _sizes: _Sizes) -> SnapshotPolicy:
    given = term.bind(("spare",)).get("spare")
    return Adaptive(SPARE_PERIOD if given is None else _whole_number("adaptive's spare", given))


def _budget(term: Term, sizes: _Sizes) -> SnapshotPolicy:
    given = term.bind(("bytes", "snapshots"))
    if len(given) > 1:
        raise ConfigError(f"{_OPTION}: budget takes bytes or snapshots. Given: both.")
    if "snapshots" in given:
        return Budget(_whole_number("budget's snapshots", given["snapshots"]))
    if "bytes" in given:
        return Budget(_snapshots_in(_byte_count(given["bytes"]), sizes), name=f"budget({given['bytes']})")
    if not sizes.budget_bytes:
        raise ConfigError(
            f"{_OPTION}: budget needs a size for each prompt, such as budget(512MiB) or budget(snapshots=8). "
            "Given: none."
        )
    return Budget(_snapshots_in(sizes.budget_bytes, sizes), name="budget")


def _snapshots_in(budget: int, sizes: _Sizes) -> int:
    if not sizes.state_bytes:
        raise ConfigError(
            f"{_OPTION}: a budget in bytes needs the size of a state, which is not known here. "
            "Give budget(snapshots=N)."
        )
    if budget < sizes.state_bytes:
        raise ConfigError(
            f"{_OPTION}: a budget must hold at least one state, {format_bytes(sizes.state_bytes)}. "
            f"Given: {format_bytes(budget)}."
        )
    return budget // sizes.state_bytes


def _byte_count(text: str) -> int:
    try:
        return parse_bytes(text)
    except ConfigError as error:
        raise ConfigError(
            f"{_OPTION}: budget takes a number of bytes, such as 512MiB or 2GiB. Given: {text!r:.100}."
        ) from error


def _whole_number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise ConfigError(f"{_OPTION}: {name} must be a whole number. Given: {text!r:.100}.")
    return int(text)


_BUILDERS: dict[str, Callable[[Term, _Sizes], SnapshotPolicy]] = {
    "none": _plain(NoSnapshots),
    "every": _every,
    "last": _plain(Last),
    "prompt-tail": _plain(PromptTail),
    "turns": _plain(Turns),
    "branch": _plain(Branch),
    "budget": _budget,
    "adaptive": _adaptive,
}

POLICY_NAMES = tuple(_BUILDERS)
"""Every policy there is."""
