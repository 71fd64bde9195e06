"""API keys: where they come from, which paths need which, and what a tenant may ask for."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.errors import ConfigError, RequestError
from milepost.server import ServerConfig
from milepost.server.access.keys import ENVIRONMENT_NAME, read_keys
from milepost.server.access.tenants import ANONYMOUS, Tenant, TenantLimits
from milepost.types import Request, SamplingParams
from milepost.types.requests import MAX_SALT_CHARS
from tests.server.scripted_server import MODEL, ServedEngine, serving

ANN, BOB, OPS = "ann-0123456789abcdef", "bob-0123456789abcdef", "ops-0123456789abcdef"
CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
KEY_FILE = f"""
[tenants.ann]
keys = ["sha256:{hashlib.sha256(ANN.encode()).hexdigest()}", "another-key-of-anns"]
max_tokens = 20
min_priority = 0

[tenants.bob]
keys = ["{BOB}"]

[tenants.ops]
keys = ["{OPS}"]
operator = true
"""


def write_keys(folder: Path, content: str = KEY_FILE) -> str:
    file = folder / "keys.toml"
    file.write_text(content, encoding="utf-8")
    file.chmod(0o600)
    return str(file)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """A server with keys, for tests that leave nothing behind."""
    with serving(ServerConfig(api_keys=write_keys(tmp_path_factory.mktemp("keys")))) as served:
        yield served


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def basic(key: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"anyone:{key}".encode()).decode()}


def asking(served: ServedEngine, key: str) -> OpenAI:
    return served.client().with_options(api_key=key)


@pytest.fixture
def accepted(guarded: ServedEngine, monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """Every request that the scheduler was given."""
    seen: list[Request] = []
    add = guarded.scheduler.add

    def note(request: Request) -> None:
        seen.append(request)
        add(request)

    monkeypatch.setattr(guarded.scheduler, "add", note)
    return seen


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": ""},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer "},
        bearer("nobody-0123456789abcdef"),
        bearer(ANN[:-1]),
        bearer(ANN.upper()),
        bearer(hashlib.sha256(ANN.encode()).hexdigest()),
        {"Authorization": ANN},
        {"Authorization": f"Token {ANN}"},
        {"Authorization": "Basic !!!"},
        {"Authorization": "Bearer \xe9\xff0123456789abcdef"},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/models", "/tokenize", "/v1/nowhere"])
def test_without_a_key_of_this_server(guarded: ServedEngine, path: str, headers: dict[str, str]) -> None:
    reply = guarded.call(path, BODY if path == CHAT else None, headers=headers)
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    assert reply.error["type"] == "authentication_error"
    assert reply.headers["www-authenticate"] == 'Bearer realm="milepost"'
    assert ANN not in reply.body.decode()


def test_openais_client_sees_an_authentication_error(guarded: ServedEngine) -> None:
    with guarded.client() as client, pytest.raises(openai.AuthenticationError) as caught:
        client.models.list()
    assert caught.value.code == "invalid_api_key"


@pytest.mark.parametrize("key", [ANN, "another-key-of-anns", BOB, OPS])
def test_every_key_opens_the_protocol(guarded: ServedEngine, key: str) -> None:
    with asking(guarded, key) as client:
        assert client.models.list().data[0].id == MODEL
        assert client.completions.create(model=MODEL, prompt="a").choices
    assert guarded.call("/v1/models", headers=basic(key)).status == 200


def test_a_prompt_is_not_read_before_the_key(guarded: ServedEngine) -> None:
    assert guarded.call(CHAT, b"{" * 1000).status == 401


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/", None),
        ("/stats.json", None),
        ("/metrics", None),
        ("/cache/reset", {}),
        ("/cache/explain", {"prompt": "a"}),
    ],
)
def test_what_concerns_all_tenants_is_for_operators(guarded: ServedEngine, path: str, body: Any) -> None:
    assert guarded.call(path, body).status == 401
    assert "Basic" in guarded.call(path, body).headers["www-authenticate"]
    reply = guarded.call(path, body, headers=bearer(ANN))
    assert (reply.status, reply.error["code"]) == (403, "operator_only")
    for headers in (bearer(OPS), basic(OPS)):
        assert guarded.call(path, body, headers=headers).status == 200


def test_a_path_that_nobody_thought_of_is_for_operators(guarded: ServedEngine) -> None:
    assert guarded.call("/secret").status == 401
    assert guarded.call("/secret", headers=bearer(BOB)).status == 403
    assert guarded.call("/secret", headers=bearer(OPS)).status == 404
    assert guarded.call("/v1/../metrics", headers=bearer(BOB)).status == 404


def test_probes_need_no_key(guarded: ServedEngine) -> None:
    for path in ("/health", "/ready", "/version", "/openapi.json"):
        assert guarded.call(path).status == 200


def test_tenants_share_no_prefix(guarded: ServedEngine, accepted: list[Request]) -> None:
    for key in (ANN, BOB, "another-key-of-anns"):
        for salt in ("", "mine"):
            with asking(guarded, key) as client:
                client.completions.create(model=MODEL, prompt="a" * 100, extra_body={"cache_salt": salt})
    salts = [request.cache_salt for request in accepted]
    assert len(salts) == 6
    assert len(set(salts)) == 4
    assert salts[:2] == salts[4:]  # one tenant's keys share
    assert all(len(salt) == 64 <= MAX_SALT_CHARS for salt in salts)


def test_only_a_tenants_own_prompts_are_cached_for_it(guarded: ServedEngine) -> None:
    def cached(key: str) -> int:
        with asking(guarded, key) as client:
            usage: Any = client.completions.create(model=MODEL, prompt="only of one tenant " * 9).usage
        return int(usage.prompt_tokens_details.cached_tokens)

    assert cached(ANN) == 0
    assert cached(ANN) > 0
    assert cached(BOB) == 0


def test_limits_of_a_tenant_bound_its_requests(guarded: ServedEngine, accepted: list[Request]) -> None:
    with asking(guarded, ANN) as client:
        form: Any = {"model": MODEL, "messages": BODY["messages"]}
        client.chat.completions.create(**form, extra_body={"priority": -5})
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**form, max_completion_tokens=21)
    (request,) = accepted
    assert (request.sampling.max_tokens, request.priority) == (20, 0)
    assert caught.value.param == "max_completion_tokens"
    assert "at most 20 with this API key. Given: 21" in str(caught.value)


def test_a_cap_below_the_protocols_default_refuses_nothing_that_was_not_asked_for(
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.ann]\nkeys = ["{ANN}"]\nmax_tokens = 5\n')
    file.chmod(0o600)
    with serving(ServerConfig(api_keys=str(file))) as served:
        served.script.tokens = [ord("x")] * 50
        reply = served.call("/v1/completions", {"prompt": "a"}, headers=bearer(ANN))
        assert reply.json["choices"][0]["text"] == "xxxxx"
        asked = {"prompt": "a", "max_tokens": 16}
        assert served.call("/v1/completions", asked, headers=bearer(ANN)).error["param"] == "max_tokens"


def test_without_keys_nothing_changes(served: ServedEngine) -> None:
    request = Request(request_id="a", prompt_token_ids=(1,), cache_salt="x", priority=-3)
    assert ANONYMOUS.bound(request) == request
    assert served.call("/metrics").status == 200
    assert served.call(CHAT, BODY, headers=bearer("whatever")).status == 200


def test_no_two_tenants_can_meet_whatever_salts_they_choose() -> None:
    ann, bob = (Tenant(name=name, salt=name.encode() * 8) for name in ("ann", "bob"))
    chosen = ["", "a", "ann", "\ud800", ann.engine_salt(""), bob.engine_salt(""), "x" * MAX_SALT_CHARS]
    seen = [tenant.engine_salt(salt) for tenant in (ann, bob) for salt in chosen]
    assert len(set(seen)) == len(seen)


def test_a_tenants_cap_fills_in_what_is_left_out_and_refuses_more() -> None:
    tenant = Tenant(name="a", limits=TenantLimits(max_tokens=4, min_priority=2))
    plain = Request(request_id="a", prompt_token_ids=(1,))
    bound = tenant.bound(plain)
    assert (bound.sampling.max_tokens, bound.priority) == (4, 2)
    fine = Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=4), priority=7)
    assert tenant.bound(fine) == fine
    more = Request(request_id="a", prompt_token_ids=(1,), sampling=SamplingParams(max_tokens=5))
    with pytest.raises(RequestError, match="max_tokens must be at most 4"):
        tenant.bound(more)


# -- where keys come from -----------------------------------------------------------------------------


def test_keys_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_NAME, f"ann={ANN}, {BOB},")
    with serving() as served:
        assert served.call("/v1/models").status == 401
        for key in (ANN, BOB):
            assert served.call("/v1/models", headers=bearer(key)).status == 200
            assert served.call("/metrics", headers=bearer(key)).status == 403
        monkeypatch.delenv(ENVIRONMENT_NAME)
        served.server.reload_keys()  # there must stay some
        assert served.call("/v1/models").status == 401


def test_names_and_bare_keys_of_the_environment() -> None:
    bare = "YmFzZTY0LWtleQ0123456789=="
    keys, notes = read_keys(None, {ENVIRONMENT_NAME: f"ann={ANN},{bare},c=sha256:{'0' * 64}"})
    assert notes == []
    ann, other = keys.tenant(ANN), keys.tenant(bare)
    assert ann is not None
    assert other is not None
    assert ann.name == "ann"
    assert other.name == f"key-{hashlib.sha256(bare.encode()).hexdigest()[:8]}"
    assert ann.salt != other.salt
    assert not ann.operator
    assert keys.tenant("sha256:" + "0" * 64) is None
    assert not read_keys(None, {})[0]


def test_a_key_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "ops.key").write_text(f"{OPS}\n")
    keys, _ = read_keys(write_keys(tmp_path, '[tenants.ops]\nkey_file = "ops.key"\n'), {})
    tenant = keys.tenant(OPS)
    assert tenant is not None
    assert tenant.name == "ops"


def test_a_given_salt_is_not_the_names(tmp_path: Path) -> None:
    salted = f'[tenants.a]\nkeys = ["{ANN}"]\nsalt = "name a name a name a"\n'
    plain = f'[tenants.a]\nkeys = ["{ANN}"]\n'
    tenants = [read_keys(write_keys(tmp_path, content), {})[0].tenant(ANN) for content in (salted, plain)]
    assert None not in tenants
    assert len({tenant.salt for tenant in tenants if tenant is not None}) == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[tenants.a]\n", "tenant a has no key"),
        ("", r"names no tenant\. Give one: \[tenants.NAME\]"),
        (f'keys = ["{ANN}"]\n', r"'keys' stands in no tenant's table\. Put it under \[tenants.NAME\]"),
        (f'[tenant.a]\nkeys = ["{ANN}"]\n', "tenant.*Did you mean 'tenants'"),
        ("[tenants]\n", "names no tenant"),
        ("[tenants.a", "is not TOML"),
        ('[tenants.a]\nkeys = ["short"]\n', "16 to 512 characters.*Given: one of 5"),
        ('[tenants.a]\nkeys = ["with spaces in its middle"]\n', "printable ASCII"),
        ('[tenants.a]\nkeys = ["sha256:12"]\n', "64 hexadecimal digits"),
        (f'[tenants.a]\nkeys = ["{ANN}"]\nmax_request = 1\n', "max_request.*Did you mean 'max_requests'"),
        (f'[tenants.a]\nkeys = ["{ANN}"]\nmax_requests = 0\n', "max_requests of a must be at least 1"),
        (f'[tenants.a]\nkeys = ["{ANN}"]\nsalt = "x"\n', "salt of a must have at least 16"),
        ('[tenants.a]\nkey_file = "a\\u0000"\n', "key_file of a must not hold a character of code 0"),
        (f'[tenants."a b"]\nkeys = ["{ANN}"]\n', "name must be up to 64"),
        (f'[tenants.a]\nkeys = ["{ANN}"]\n[tenants.b]\nkeys = ["{ANN}"]\n', "a and b have the same API key"),
        ('[tenants.a]\nkey_file = "gone.key"\n', "can't read .*gone.key: No such file"),
    ],
)
def test_a_file_that_is_wrong(tmp_path: Path, content: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        read_keys(write_keys(tmp_path, content), {})
    for secret in (ANN, "with spaces in its middle", '"short"'):
        assert secret not in str(raised.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"can't read .*No such file"):
        read_keys(str(tmp_path / "none.toml"), {})


def test_a_name_of_file_and_environment(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has a tenant ann too"):
        read_keys(write_keys(tmp_path), {ENVIRONMENT_NAME: "ann=some-0123456789abcdef"})


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (KEY_FILE, 0o640, "others can read it"),
        (f"[tenants.a]\nkeys = ['sha256:{'0' * 64}']\n", 0o644, None),
        (f"[tenants.a]\nkeys = ['sha256:{'0' * 64}']\n", 0o662, "Others can write"),
        (
            f"[tenants.a]\nkeys = ['sha256:{'0' * 64}']\nsalt = 'x1234567890123456'\n",
            0o604,
            "others can read it",
        ),
        (KEY_FILE, 0o600, None),
    ],
)
def test_a_file_that_others_can_read_or_write(
    tmp_path: Path, content: str, mode: int, words: str | None
) -> None:
    file = write_keys(tmp_path, content)
    Path(file).chmod(mode)
    _, notes = read_keys(file, {})
    assert len(notes) == (words is not None)
    assert words is None or words in notes[0]


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [
        (ANN, 0o644, "ann.key holds secrets and others can read it"),
        (ANN, 0o620, "Others can write .*ann.key"),
        (f"sha256:{'0' * 64}", 0o644, None),
        (ANN, 0o600, None),
    ],
)
def test_a_key_s_own_file_that_others_can_read_or_write(
    tmp_path: Path, content: str, mode: int, words: str | None
) -> None:
    key = tmp_path / "ann.key"
    key.write_text(f"{content}\n")
    key.chmod(mode)
    _, notes = read_keys(write_keys(tmp_path, "[tenants.ann]\nkey_file = 'ann.key'\n"), {})
    assert len(notes) == (words is not None)
    assert words is None or re.search(words, notes[0])


def test_keys_are_read_again(tmp_path: Path) -> None:
    file = write_keys(tmp_path)
    with serving(ServerConfig(api_keys=file)) as served:
        write_keys(tmp_path, KEY_FILE.replace(BOB, "new-0123456789abcdef"))
        served.server.reload_keys()
        assert served.call("/v1/models", headers=bearer(BOB)).status == 401
        assert served.call("/v1/models", headers=bearer("new-0123456789abcdef")).status == 200
        for broken in ("[tenants", "[tenants]"):
            write_keys(tmp_path, broken)
            served.server.reload_keys()
            assert served.call("/v1/models", headers=bearer(ANN)).status == 200
