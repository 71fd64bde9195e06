"""What of a reply goes to stdout."""

from __future__ import annotations

import json

import pytest

from milepost.chat.calls import ToolCallDelta
from milepost.chat.messages import ToolCall
from milepost.chat.reply import ReplyDelta
from milepost.cli.print_reply import print_reply
from milepost.types import RequestOutput, Usage


def test_tool_calls_come_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    call = ToolCall(id="call_1", name="look", arguments='{"at": "é"}')
    deltas = [
        ReplyDelta(reasoning="Let me look."),
        ReplyDelta(content="Looking"),
        ReplyDelta(content=" now", tool_calls=(ToolCallDelta(index=0, id="call_1", name="look"),)),
        ReplyDelta(tool_calls=(ToolCallDelta(index=0, arguments='{"at": '),)),
        ReplyDelta(tool_calls=(ToolCallDelta(index=0, arguments='"é"}'),)),
    ]
    output = RequestOutput(request_id="a", usage=Usage(prompt_tokens=1, output_tokens=1))
    seen: list[RequestOutput] = []
    reply = print_reply(((delta, output) for delta in deltas), seen.append)
    assert (reply.content, reply.reasoning, reply.tool_calls) == ("Looking now", "Let me look.", (call,))
    assert seen == [output] * 5
    text, line = capsys.readouterr().out.splitlines()
    assert text == "Looking now"
    assert json.loads(line) == {"id": "call_1", "name": "look", "arguments": '{"at": "é"}'}
