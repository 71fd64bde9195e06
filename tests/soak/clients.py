"""The process of the clients: each asks again and again until the time is over.

    python -m tests.soak.clients URL --clients 200 --seconds 40 --seed 1 --options '["stop", "n"]'

prints one JSON object: how often exchanges ended how, and every end that must not be.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.soak.traffic import Asked, random_request
from tests.soak.wire import Connection, Head, ProtocolError, head_of

PATIENCE = 90.0  # seconds; an exchange that takes longer hangs
REFUSALS = {429}
MAX_FAULTS = 20


class Tally:
    """How exchanges ended.

    Attributes:
        ends: by kind: complete, an error event, refused, left (and where).
        finish_reasons: of all choices that came to their end.
        left_choices: choices of those that the clients left.
        faults: what must not be, in words, the first ones.
        num_faults: all of them.
        num_events: server-sent events read.
        first_events: seconds until the first one.
    """

    def __init__(self) -> None:
        self.ends: Counter[str] = Counter()
        self.finish_reasons: Counter[str] = Counter()
        self.left_choices = 0
        self.ended_choices = 0
        self.faults: list[str] = []
        self.num_faults = 0
        self.num_events = 0
        self.first_events: list[float] = []

    def fault(self, asked: Asked, what: str) -> None:
        self.num_faults += 1
        self.ends["fault"] += 1
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(f"{what}; asked: {asked.path} {json.dumps(asked.body)[:600]}")

    def report(self) -> dict[str, Any]:
        first = sorted(self.first_events)
        return {
            "ends": dict(self.ends),
            "finish_reasons": dict(self.finish_reasons),
            "left_choices": self.left_choices,
            "ended_choices": self.ended_choices,
            "events": self.num_events,
            "first_event_p50_s": first[len(first) // 2] if first else None,
            "first_event_p99_s": first[len(first) * 99 // 100] if first else None,
            "num_faults": self.num_faults,
            "faults": self.faults,
        }


async def exchange(url: str, asked: Asked, tally: Tally) -> None:
    """One request to one of its ends."""
    begun = time.monotonic()
    connection = await Connection.open(url)
    try:
        if asked.leaves == "in the body":
            data = json.dumps(asked.body).encode()
            headers = {"Content-Type": "application/json", "Content-Length": str(len(data))}
            await connection.send(head_of(asked.path, headers) + data[: len(data) // 2])
            _left(asked, tally)
            return
        await connection.post(asked.path, asked.body)
        if asked.leaves == "after the body":
            await asyncio.sleep(random.random() * 0.05)
            _left(asked, tally)
            return
        head = await connection.head()
        if head.status in REFUSALS:
            await connection.whole(head)
            tally.ends[f"refused {head.status}"] += 1
        elif head.status == 504 and "timeout" in asked.body:
            await connection.whole(head)
            tally.ends["refused 504"] += 1
            tally.left_choices += asked.num_choices
        elif head.status != 200:
            tally.fault(asked, f"status {head.status}: {(await connection.whole(head))[:300]!r}")
        elif asked.body.get("stream"):
            await _read_stream(connection, head, begun, asked, tally)
        else:
            _take_whole(json.loads(await connection.whole(head)), asked, tally)
    finally:
        connection.leave(rudely=asked.rudely and asked.leaves is not None)


def _left(asked: Asked, tally: Tally) -> None:
    tally.ends[f"left {asked.leaves}"] += 1
    tally.left_choices += asked.num_choices


@dataclass
class _Reply:
    """What the events of a stream have said so far."""

    num_events: int = 0
    done: bool = False
    errors: int = 0
    ends: Counter[int] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)

    def take(self, data: str) -> None:
        """Take in an event.

        Raises:
            ProtocolError: the reply had ended.
        """
        self.num_events += 1
        if self.done:
            raise ProtocolError(f"an event after [DONE]: {data[:200]}")
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if "error" in event:
            self.errors += 1
            self.reasons[event["error"].get("code") or "error"] += 1
        for choice in event.get("choices", ()):
            if choice["finish_reason"] is not None:
                self.ends[choice["index"]] += 1
                self.reasons[choice["finish_reason"]] += 1

    def require_ended(self, num_choices: int) -> None:
        """One end for everything.

        Raises:
            ProtocolError: none, or more than one.
        """
        if not self.done or self.errors > 1 or any(times != 1 for times in self.ends.values()):
            raise ProtocolError(f"done: {self.done}, {self.errors} errors, ends by choice {dict(self.ends)}")
        if not self.errors and len(self.ends) != num_choices:
            raise ProtocolError(f"{len(self.ends)} of {num_choices} choices ended")


async def _read_stream(connection: Connection, head: Head, begun: float, asked: Asked, tally: Tally) -> None:
    reply = _Reply()
    async for data in connection.events(head):
        if not reply.num_events:
            tally.first_events.append(time.monotonic() - begun)
        reply.take(data)
        if asked.leaves == "in the reply" and reply.num_events > asked.events:
            _left(asked, tally)
            return
        if asked.pause and reply.num_events % 5 == 0:
            await asyncio.sleep(asked.pause)
    reply.require_ended(asked.num_choices)
    tally.num_events += reply.num_events
    tally.finish_reasons.update(reply.reasons)
    tally.ended_choices += len(reply.ends)
    tally.left_choices += asked.num_choices - len(reply.ends)  # an error ends the others
    tally.ends["an error event" if reply.errors else "complete"] += 1


def _take_whole(reply: dict[str, Any], asked: Asked, tally: Tally) -> None:
    reasons = [choice["finish_reason"] for choice in reply["choices"]]
    if len(reasons) != asked.num_choices or None in reasons:
        raise ProtocolError(f"finish reasons {reasons} for {asked.num_choices} choices")
    tally.finish_reasons.update(reasons)
    tally.ended_choices += len(reasons)
    tally.ends["complete"] += 1


async def client(url: str, number: int, arguments: argparse.Namespace, end: float, tally: Tally) -> None:
    """Ask until `end`, and finish what was asked."""
    draw = random.Random(f"{arguments.seed}/{number}")
    served = set(json.loads(arguments.options))
    await asyncio.sleep(draw.random() * 2)  # not all in the same moment
    while time.monotonic() < end:
        asked = random_request(draw, served)
        try:
            async with asyncio.timeout(PATIENCE):
                await exchange(url, asked, tally)
        except TimeoutError:
            tally.fault(asked, f"no end after {PATIENCE:.0f} s")
        except (ProtocolError, OSError, ValueError, KeyError) as error:
            tally.fault(asked, f"{type(error).__name__}: {error}")
        await asyncio.sleep(draw.random() * 0.2)


async def main(arguments: argparse.Namespace) -> None:
    """Run all clients and print the report."""
    tally = Tally()
    end = time.monotonic() + arguments.seconds
    async with asyncio.TaskGroup() as group:
        for number in range(arguments.clients):
            group.create_task(client(arguments.url, number, arguments, end, tally))
    sys.stdout.write(json.dumps(tally.report()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--seed", default="0")
    parser.add_argument("--options", default="[]", help="names of traffic.OPTIONS, as a JSON list")
    asyncio.run(main(parser.parse_args()))
