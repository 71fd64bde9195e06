"""Which functions a model may call, and which it must: ``tools`` and ``tool_choice``, checked.

Every error is a `RequestError` whose ``param`` is the path of the field at fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milepost.chat.messages import parse_tools
from milepost.errors import RequestError

__all__ = ["Function", "ToolUse", "parse_tool_use"]

CHOICES = ("auto", "none", "required")


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call.

    Attributes:
        name: as the model spells it.
        parameters: the JSON Schema of its arguments; None when it takes none.
        strict: whether its calls must follow the schema.
        path: of its schema in the request.
    """

    name: str
    parameters: Mapping[str, Any] | None
    strict: bool
    path: str


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """How the next reply may use tools.

    Attributes:
        declared: the tools as they were given.
        functions: the ones that may be called.
        choice: "auto", "none", "required"; "named" is one call of the one function.
        parallel: whether there may be several calls.
    """

    declared: tuple[Mapping[str, Any], ...] = ()
    functions: tuple[Function, ...] = ()
    choice: str = "auto"
    parallel: bool = True

    @property
    def forced(self) -> bool:
        """Whether there must be a call."""
        return self.choice in ("required", "named")

    @property
    def constrained(self) -> bool:
        """Whether a reply that the model writes freely could break what was asked for."""
        if not self.declared:
            return False
        limited = len(self.functions) < len(self.declared) or not self.parallel
        return self.choice != "auto" or limited or any(function.strict for function in self.functions)


def parse_tool_use(
    tools: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None = None,
    parallel: bool | None = None,
) -> ToolUse:
    """Check the fields that speak of tools.

    Args:
        tools: OpenAI's ``tools``.
        choice: OpenAI's ``tool_choice``, in any of its forms.
        parallel: OpenAI's ``parallel_tool_calls``.

    Raises:
        RequestError: the first thing that is wrong, with its path.
    """
    declared = parse_tools(tools)
    functions = {function.name: function for function in map(_function, declared, range(len(declared)))}
    if parallel is not None and not isinstance(parallel, bool):
        raise _error("parallel_tool_calls", f"must be true or false. Given: {parallel!r:.60}.")
    kind, names = _parse_choice(choice, functions)
    if kind in ("required", "named") and not declared:
        raise _error("tool_choice", f"is {kind}, but there are no tools. Give tools.")
    return ToolUse(
        declared=declared,
        functions=tuple(functions[name] for name in (functions if names is None else names)),
        choice=kind if declared else "auto",
        parallel=parallel is not False and kind != "named",
    )


def _function(tool: Mapping[str, Any], i: int) -> Function:
    path, function = f"tools[{i}].function", tool["function"]
    parameters, strict = function.get("parameters"), function.get("strict")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise _error(f"{path}.parameters", f"must be a JSON Schema object. Given: {parameters!r:.60}.")
    if strict is not None and not isinstance(strict, bool):
        raise _error(f"{path}.strict", f"must be true or false. Given: {strict!r:.60}.")
    return Function(
        name=function["name"], parameters=parameters, strict=bool(strict), path=f"{path}.parameters"
    )


def _parse_choice(
    choice: str | Mapping[str, Any] | None, functions: Mapping[str, Function]
) -> tuple[str, list[str] | None]:
    """(kind, the names that may be called, None for all)."""
    if choice is None:
        return "auto", None
    if isinstance(choice, str) and choice in CHOICES:
        return choice, None
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return "named", [_known_name(choice, "tool_choice", functions)]
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        return _parse_allowed(choice.get("allowed_tools"), functions)
    raise _error(
        "tool_choice",
        f"must be one of {', '.join(CHOICES)}, or an object that names a function: "
        f'{{"type": "function", "function": {{"name": ...}}}}. Given: {choice!r:.80}.',
    )


def _parse_allowed(allowed: object, functions: Mapping[str, Function]) -> tuple[str, list[str]]:
    path = "tool_choice.allowed_tools"
    if not isinstance(allowed, Mapping):
        raise _error(path, f"must be an object with mode and tools. Given: {allowed!r:.60}.")
    mode, tools = allowed.get("mode"), allowed.get("tools")
    if mode not in ("auto", "required"):
        raise _error(f"{path}.mode", f"must be auto or required. Given: {mode!r:.60}.")
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes) or not tools:
        raise _error(f"{path}.tools", f"must be a list of at least one function. Given: {tools!r:.60}.")
    names = [_known_name(tool, f"{path}.tools[{i}]", functions) for i, tool in enumerate(tools)]
    return mode, list(dict.fromkeys(names))


def _known_name(tool: object, path: str, functions: Mapping[str, Function]) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    path = f"{path}.function.name"
    if not isinstance(name, str) or name not in functions:
        known = ", ".join(functions) or "none, for there are no tools"
        raise _error(path, f"must name one of the tools: {known}. Given: {name!r:.60}.")
    return name


def _error(path: str, what: str) -> RequestError:
    return RequestError(f"{path} {what}", param=path)
