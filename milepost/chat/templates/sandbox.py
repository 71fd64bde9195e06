"""Renders Hugging Face's chat templates, whoever wrote them.

Jinja's immutable sandbox keeps a template from the attributes of Python's objects. This one also bounds what
it makes (`milepost.chat.templates.limits`) and how long it computes: each line of a template's compiled form
looks at the clock, and so do the calls that it leads to. It knows the filters and functions that chat
templates use, no others, and no other files.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, loopcontrols
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment, safe_range

from milepost.chat.templates.limits import (
    Meter,
    TemplateLimitError,
    as_text,
    check_built,
    check_format,
    check_formatted,
    check_size,
    joined,
    meter,
    set_meter,
)
from milepost.chat.templates.operations import (
    BINARY_OPERATIONS,
    STRING_METHODS,
    TemplateRefusal,
    call_string_method,
    filters_of,
    globals_of,
    listed,
)
from milepost.errors import ConfigError, RequestError

__all__ = ["ChatTemplate"]

MAX_TEMPLATE_CHARS = 1024 * 1024
MAX_TOLD_CHARS = 300

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_CALLS = itertools.count()
_CALLS_TO_A_LOOK = 64  # at the clock, which takes longer than most calls
_CODE_FILE = "<template>"  # Jinja's name for a template that came from no file
_SAFE_OF_MAPPINGS = frozenset({"get", "items", "keys", "values"})
_SAFE_OF_LISTS = frozenset({"count", "index"})
_SCOPES = frozenset({"_block_vars", "_loop_vars"})  # Jinja hands them to what asks for its context


class ChatTemplate:
    """A compiled template.

    Args:
        source: the template's text.
        origin: where it came from, for messages: an option or a file's name.

    Raises:
        ConfigError: it can't be compiled.
    """

    def __init__(self, source: str, origin: str) -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ConfigError(
                f"{origin} must be at most {MAX_TEMPLATE_CHARS:,} characters. Given: {len(source):,}."
            )
        environment = _Environment()
        try:
            self._template = environment.from_string(source)
            self._names = frozenset(find_undeclared_variables(environment.parse(source)))
        except TemplateSyntaxError as error:
            raise ConfigError(
                f"{origin} is no chat template: line {error.lineno}: {(error.message or '').rstrip('.')}."
            ) from None
        except Exception as error:  # noqa: BLE001  # deep nests and the like; Jinja names no base for them
            raise ConfigError(f"{origin} is no chat template: {_told(error)}.") from None

    @property
    def names(self) -> frozenset[str]:
        """The variables that the template looks at and does not set."""
        return self._names

    def render(self, variables: Mapping[str, Any], mark: str = "") -> str:
        """The template's text for one conversation.

        Args:
            variables: what the template may look at.
            mark: the character by which users' texts are marked, if they are.

        Raises:
            RequestError: the template refuses the conversation, fails, or passes a limit.
        """
        set_meter(Meter(mark))
        before = sys.gettrace()
        sys.settrace(_trace_calls)
        try:
            return self._written(variables)
        except TemplateRefusal as refusal:
            said = (refusal.message or "").replace(mark, "") if mark else refusal.message
            raise _error(f"The chat template refuses this conversation: {said}") from None
        except TemplateLimitError as error:
            raise _error(f"The chat template was ended: {error}.") from None
        except Exception as error:  # noqa: BLE001  # a template can raise whatever its operations raise
            said = _told(error).replace(mark, "") if mark else _told(error)
            raise _error(f"The chat template fails at this conversation: {said}.") from None
        finally:
            sys.settrace(before)
            set_meter(None)

    def _written(self, variables: Mapping[str, Any]) -> str:
        context = self._template.new_context(dict(variables))
        pieces: list[str] = []
        total = 0
        for piece in self._template.root_render_func(context):
            pieces.append(piece)
            total += len(piece)
            check_size(total)
        return "".join(pieces)


def _trace_calls(frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
    """Follow the template's own code, line by line, and look at the clock in what it calls."""
    if not next(_CALLS) % _CALLS_TO_A_LOOK:
        meter().check_time()
    return _trace_line if frame.f_code.co_filename == _CODE_FILE else None


def _trace_line(_frame: FrameType, _event: str, _argument: object) -> Callable[..., Any]:
    meter().check_time()
    return _trace_line


def _bounded_format(text: str, known: Callable[..., str]) -> Callable[..., str]:
    check_format(text)

    def bounded(*arguments: Any, **named: Any) -> str:  # noqa: ANN401  # whatever a template holds
        given = {name: value for name, value in named.items() if name not in _SCOPES}
        check_formatted(text, text.count("{"), (*arguments, *given.values()))
        return meter().write(known(*arguments, **given))

    return bounded


def _error(message: str) -> RequestError:
    return RequestError(message, param="messages")


def _told(error: Exception) -> str:
    """What went wrong, in few words; errors of templates hold nothing of the host."""
    message = error.message if isinstance(error, TemplateError) else str(error)
    message = _ADDRESS.sub("", message or "")
    return f"{type(error).__name__}: {message or 'no reason given'}"[:MAX_TOLD_CHARS].rstrip(".")


_Called = nodes.Call | nodes.Filter | nodes.Test


class _Generator(CodeGenerator):
    """Compiles what makes values larger into calls that bound it."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  # Jinja's name
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802  # Jinja's name
        self._bounded(super().visit_List, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802  # Jinja's name
        if node.ctx == "load":
            self._bounded(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def signature(self, node: _Called, frame: Frame, extra_kwargs: Mapping[str, Any] | None = None) -> None:
        if node.dyn_args is not None:  # f(*values) makes them all at once
            bound = nodes.EnvironmentAttribute("check_spread")
            node.dyn_args = nodes.Call(bound, [node.dyn_args], [], None, None)
        super().signature(node, frame, extra_kwargs)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802  # Jinja's name
        self._bounded(super().visit_Dict, node, frame)

    def _bounded(self, visit: Callable[..., None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.check_built(")
        visit(node, frame)
        self.write(")")


class _Generation(Extension):
    """``{% generation %}``, by which templates mark replies for training: its body is written as it is."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own form of it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The body alone."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(BINARY_OPERATIONS)
    concat = staticmethod(joined)
    joined = staticmethod(joined)
    check_built = staticmethod(check_built)
    check_spread = staticmethod(listed)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            # Nothing is computed while the template is compiled, outside of the limits.
            optimized=False,
            finalize=as_text,
            extensions=[_Generation, loopcontrols],
            cache_size=0,
        )
        self.filters = filters_of(self.filters)
        self.globals = globals_of(safe_range)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:  # noqa: ANN401  # Jinja's signature
        """Whether a template may see an attribute of an object."""
        if isinstance(obj, str):
            return attr in STRING_METHODS
        if isinstance(obj, Mapping):
            return attr in _SAFE_OF_MAPPINGS
        if isinstance(obj, list | tuple):
            return attr in _SAFE_OF_LISTS
        return super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401, ARG002
        """One of the operations that can make something larger."""
        return BINARY_OPERATIONS[operator](left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:  # noqa: ANN401  # Jinja's signature
        """``str.format``, without its widest fields."""
        wrapped = super().wrap_str_format(value)
        return None if wrapped is None else _bounded_format(value.__self__, wrapped)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401, N805
        """Call a function or a method."""
        if isinstance(getattr(__obj, "__self__", None), str):
            named = {name: value for name, value in kwargs.items() if name not in _SCOPES}
            return call_string_method(__obj, *args, **named)
        return super().call(__context, __obj, *args, **kwargs)
