"""How much may be asked for: by whom, at once, over time, and in how many bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.server import ServerConfig
from milepost.server.access.admission import Admission, Bucket, Pace
from milepost.server.access.tenants import Tenant, TenantLimits
from milepost.server.protocol.errors import HttpError
from milepost.types import Request
from tests.server.scripted_server import MODEL, ServedEngine, run_for_long, serving

KEY = "ann-0123456789abcdef"
CHAT = "/v1/chat/completions"


@contextmanager
def limited(folder: Path, limits: str, **options: Any) -> Iterator[tuple[ServedEngine, OpenAI]]:
    """A server with one tenant, and its client."""
    file = folder / "keys.toml"
    file.write_text(f'[tenants.ann]\nkeys = ["{KEY}"]\noperator = true\n{limits}\n')
    file.chmod(0o600)
    with serving(ServerConfig(api_keys=str(file), **options)) as served, served.client() as client:
        yield served, client.with_options(api_key=KEY)


# -- tenants and the queue ----------------------------------------------------------------------------


def test_as_many_at_once_as_a_tenant_may_have(tmp_path: Path) -> None:
    with limited(tmp_path, "max_requests = 2") as (served, client):
        run_for_long(served)
        form: Any = {"model": MODEL, "max_tokens": 900}
        streams = [client.completions.create(**form, prompt="a", stream=True) for _ in range(2)]
        for stream in streams:
            next(stream)
        with pytest.raises(openai.RateLimitError) as caught:
            client.completions.create(**form, prompt="b")
        assert caught.value.code == "rate_limit_exceeded"
        assert caught.value.type == "rate_limit_error"
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        streams[0].close()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                client.completions.create(model=MODEL, prompt="b", max_tokens=1)
                break
            except openai.RateLimitError:
                time.sleep(0.02)
        else:
            raise AssertionError("a place that was left stays taken")
        with pytest.raises(openai.BadRequestError, match="at most 2 replies"):
            client.completions.create(**form, prompt=["a", "b", "c"])
        streams[1].close()


def test_requests_a_minute(tmp_path: Path) -> None:
    with limited(tmp_path, "requests_per_minute = 2") as (_, client):
        for _ in range(2):
            client.completions.create(model=MODEL, prompt="a")
        with pytest.raises(openai.RateLimitError, match="2 replies a minute") as caught:
            client.completions.create(model=MODEL, prompt="a")
        assert 25 <= int(caught.value.response.headers["Retry-After"]) <= 30


def test_tokens_a_minute(tmp_path: Path) -> None:
    with limited(tmp_path, "tokens_per_minute = 100") as (served, client):
        served.script.tokens = [ord("x")] * 200
        client.completions.create(model=MODEL, prompt="a" * 50, max_tokens=110)
        with pytest.raises(openai.RateLimitError, match="100 tokens a minute") as caught:
            client.completions.create(model=MODEL, prompt="a")
        # 60 too many were taken: 61 must come back, at 100 a minute.
        assert 34 <= int(caught.value.response.headers["Retry-After"]) <= 37


def test_a_prompt_over_a_limit_is_not_even_tokenised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with limited(tmp_path, "requests_per_minute = 1") as (served, client):
        client.completions.create(model=MODEL, prompt="a")

        def fail(*_: object) -> None:
            raise AssertionError("it was tokenised")

        monkeypatch.setattr(served.services.tokenizer, "encode", fail)
        monkeypatch.setattr(served.services.encoding, "encode", fail)
        with pytest.raises(openai.RateLimitError):
            client.completions.create(model=MODEL, prompt="a")
        messages: Any = [{"role": "user", "content": "a"}]
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model=MODEL, messages=messages)


def test_a_full_queue() -> None:
    with serving(ServerConfig(max_waiting=3)) as served:
        run_for_long(served)
        served.executor.seconds = 0.3
        statuses: list[int] = []

        def ask() -> None:
            body = {"model": MODEL, "prompt": "a" * 200, "max_tokens": 1}
            reply = served.call("/v1/completions", body)
            statuses.append(reply.status)
            if reply.status == 429:
                assert reply.error["code"] == "queue_full"
                assert int({k.lower(): v for k, v in reply.headers.items()}["retry-after"]) >= 1

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) == {200, 429}
        assert statuses.count(200) >= 3
        assert served.metric('milepost:http_errors_total{code="queue_full",status="429"}') == statuses.count(
            429
        )
        served.wait_until_idle()
        assert served.call("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1}).status == 200


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def requests(count: int, tokens: int = 1) -> list[Request]:
    return [Request(request_id=str(i), prompt_token_ids=(1,) * tokens) for i in range(count)]


def retry_after(admission: Admission, tenant: Tenant, count: int = 1) -> tuple[str, int] | None:
    """The code and the seconds of a refusal; None when it may come in."""
    try:
        admission.check(tenant, count)
    except HttpError as refusal:
        return str(refusal.detail.code), int(refusal.headers["Retry-After"])
    return None


def test_a_bucket() -> None:
    bucket = Bucket(60, now=0.0)
    bucket.take(60, 0.0)
    assert bucket.wait(0.0) == pytest.approx(1.0)
    assert bucket.wait(1.0) == 0.0
    bucket.take(100, 1.0)  # more than there ever is: a debt
    assert bucket.wait(1.0) == pytest.approx(100.0)
    bucket.take(0, 10_000.0)
    bucket.take(60, 10_000.0)  # idle time is worth a minute, no more
    assert bucket.wait(10_000.0) == pytest.approx(1.0)


def test_how_long_it_takes_until_others_have_ended() -> None:
    pace = Pace()
    assert pace.seconds_for(2, 0.0) == 10.0  # a guess
    for now in (1.0, 2.0, 3.0, 4.0):
        pace.ended(now)
    assert pace.seconds_for(8, 5.0) == pytest.approx(8.0)
    assert pace.seconds_for(2, 500.0) == 10.0  # what was long ago says nothing


def test_a_tenants_own_queue() -> None:
    waiting = 0
    clock = Clock()
    admission = Admission(100, lambda: waiting, clock)
    ann = Tenant(name="ann", limits=TenantLimits(max_waiting=2))
    bob = Tenant(name="bob", limits=TenantLimits(max_waiting=2))
    for tenant in (ann, ann, ann, bob):
        admission.begin(tenant, requests(1))
    assert retry_after(admission, ann) is None  # the engine has begun with all of them
    waiting = 4
    assert retry_after(admission, ann) == ("queue_full", 10)
    assert retry_after(admission, bob) is None
    admission.begun(ann)
    admission.begun(ann)
    assert retry_after(admission, ann) is None
    waiting = 100
    assert retry_after(admission, bob) == ("queue_full", 5)


def test_an_ended_request_leaves_its_place() -> None:
    admission = Admission(100, lambda: 0, Clock())
    tenant = Tenant(name="ann", limits=TenantLimits(max_requests=2))
    admission.begin(tenant, requests(2))
    assert retry_after(admission, tenant) == ("rate_limit_exceeded", 5)
    admission.begun(tenant)
    admission.ended(tenant)
    assert retry_after(admission, tenant, 1) is None
    assert retry_after(admission, tenant, 2) is not None


def test_limits_that_were_changed_count_from_then_on() -> None:
    clock = Clock()
    admission = Admission(100, lambda: 0, clock)
    ann = Tenant(name="ann", limits=TenantLimits(requests_per_minute=1))
    admission.begin(ann, requests(1))
    assert retry_after(admission, ann) == ("rate_limit_exceeded", 60)
    assert retry_after(admission, Tenant(name="ann")) is None
    more = Tenant(name="ann", limits=TenantLimits(requests_per_minute=2))
    assert retry_after(admission, more) is None


def test_what_runs_under_the_limits_before_a_change_brings_none_of_them_back() -> None:
    clock = Clock()
    admission = Admission(100, lambda: 0, clock)
    before = [Tenant(name="ann", limits=TenantLimits(tokens_per_minute=limit)) for limit in (None, 1000)]
    after = Tenant(name="ann", limits=TenantLimits(tokens_per_minute=10))
    for tenant in before:
        admission.check(tenant, 1)
        admission.begin(tenant, requests(1))
    assert retry_after(admission, after) is None
    admission.begin(after, requests(1, tokens=10))
    for tenant in before:
        admission.begun(tenant)
        admission.drawn(tenant, 1)
        admission.ended(tenant)
    assert retry_after(admission, after) == ("rate_limit_exceeded", 18)  # two tokens of debt, and one to take


def test_a_clock_that_runs_while_limits_are_checked() -> None:
    clock = Clock()

    def tick() -> float:
        clock.now += 1e-6
        return clock.now

    admission = Admission(100, lambda: 0, tick)
    tenant = Tenant(name="ann", limits=TenantLimits(requests_per_minute=1, tokens_per_minute=1))
    assert retry_after(admission, tenant) is None


def test_no_estimate_is_longer_than_five_minutes() -> None:
    admission = Admission(100, lambda: 0, Clock())
    tenant = Tenant(name="ann", limits=TenantLimits(tokens_per_minute=1))
    admission.begin(tenant, requests(1, tokens=5000))
    assert retry_after(admission, tenant) == ("rate_limit_exceeded", 300)
