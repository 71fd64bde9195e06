"""``milepost explain``: what a prompt would hit in a running server's prefix cache, and why not more."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, TextIO

import click
import msgspec
from rich.table import Table

from milepost.cli.options import examples
from milepost.cli.terminal import figures_table, results, write
from milepost.errors import ConfigError, ExecutionError, RequestError
from milepost.prefix.reports import Explanation

__all__ = ["explain"]

DEFAULT_URL = "http://127.0.0.1:8000"
TIMEOUT_SECONDS = 60
KEY_VARIABLE = "MILEPOST_API_KEY"

# What shapes the prompt of a chat; a request that was sent to the server may hold more.
CHAT_FIELDS = ("messages", "tools", "tool_choice", "reasoning_effort", "chat_template_kwargs", "cache_salt")

# By `milepost.prefix.reports.Loss` value; a newer server may know more.
CAUSES = {
    "unseen": "nobody sent them before, or it is forgotten",
    "evicted_state": "their KV is cached; the snapshot there was evicted",
    "evicted_kv": "their KV was cached and was evicted",
    "no_snapshot": "their KV is cached; the policy left no snapshot there",
    "below_unit": "the same, by less than a match unit",
    "salt": "their beginning came under another salt",
    "not_published": "another request is computing them right now",
    "not_loaded": "in another tier; too few to be worth a load, or no room",
    "no_memory": "cached, but too little memory to resume from there",
    "cap": "the last token, which is always computed",
}


@click.command(
    epilog=examples(
        'milepost explain --prompt "To be, or not to be"',
        "milepost explain --messages conversation.json --no-thinking",
        "milepost explain --url http://127.0.0.1:8080 --prompt-file question.txt --json | jq .losses",
        "SSL_CERT_FILE=chain.pem milepost explain --url https://localhost:8000 --api-key-file ops.key \\",
        '  --tenant search --prompt "To be"',
    )
)
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Where `milepost serve` answers.")
@click.option("--prompt", metavar="TEXT", help="Raw text, as of the completions endpoint.")
@click.option("--prompt-file", type=click.File(encoding="utf-8"), help="A file with it; - is stdin.")
@click.option(
    "--messages",
    type=click.File(encoding="utf-8"),
    help="JSON: a list of messages, or a chat request as it is sent; - is stdin.",
)
@click.option("--thinking/--no-thinking", default=None, help="With --messages; the model's default else.")
@click.option("--cache-salt", metavar="TEXT", help="Whose part of the cache to look into.")
@click.option(
    "--tenant", metavar="NAME", help="Of the server's API keys, likewise.  [default: the key's own]"
)
@click.option(
    "--api-key-file",
    type=click.File(encoding="utf-8"),
    metavar="FILE",
    help="An operator's key, where the server has keys; or set $MILEPOST_API_KEY.",
)
@click.option("--json", "as_json", is_flag=True, help="The explanation as one JSON object.")
def explain(
    *,
    url: str,
    prompt: str | None,
    prompt_file: TextIO | None,
    messages: TextIO | None,
    thinking: bool | None,
    cache_salt: str | None,
    tenant: str | None,
    api_key_file: TextIO | None,
    as_json: bool,
) -> None:
    """Show what a prompt would hit in a server's cache.

    That is, in the prefix cache of a running `milepost serve`: how much of the prompt's KV is cached,
    which snapshots of the recurrent state lie on its path, and why the remaining tokens would be
    computed. Nothing is computed and nothing changes.
    """
    given = [name for name in (prompt, prompt_file, messages) if name is not None]
    if len(given) > 1:
        raise click.UsageError("--prompt, --prompt-file and --messages exclude each other. Give one of them.")
    if thinking is not None and messages is None:
        raise click.UsageError("--thinking belongs to the chat form. Give --messages.")
    if messages is not None:
        body = _chat_body(_read(messages))
        if thinking is not None:
            body["chat_template_kwargs"] = {"thinking": thinking}
    else:
        body = {"prompt": prompt if prompt is not None else _read(prompt_file or _stdin())}
    if cache_salt is not None:
        body["cache_salt"] = cache_salt
    if tenant is not None:
        body["tenant"] = tenant
    explanation = _ask(url, body, _key(api_key_file))
    if as_json:
        write(msgspec.json.encode(explanation).decode(), end="\n")
    else:
        _print(explanation)


def _stdin() -> TextIO:
    if sys.stdin.isatty():
        raise click.UsageError(
            "There is no prompt. Give --prompt TEXT, --prompt-file FILE or --messages FILE."
        )
    return sys.stdin


def _read(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise RequestError(f"{file.name} must be UTF-8 text ({error}). Convert it.", param="prompt") from None


def _chat_body(text: str) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"The messages are not valid JSON: {error}.", param="messages") from None
    if isinstance(content, list):
        return {"messages": content}
    if isinstance(content, dict) and "messages" in content:
        return {name: content[name] for name in CHAT_FIELDS if name in content}
    raise RequestError(
        f'The messages must be a list, or an object with "messages", as JSON. Given: {text.strip()[:60]!r}.',
        param="messages",
    )


# --- the server -------------------------------------------------------------------------------------


def _key(file: TextIO | None) -> str:
    """The key to ask with; empty for none. Never from the command line, which other users can read."""
    key = (os.environ.get(KEY_VARIABLE, "") if file is None else _read(file)).strip()
    if key and not (key.isascii() and key.isprintable()):
        raise ConfigError("The API key must be printable ASCII in one line, as a header carries it.")
    return key


def _ask(url: str, body: Mapping[str, Any], key: str) -> Explanation:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must be an http address, such as {DEFAULT_URL}. Given: {url!r}.")
    try:
        data = msgspec.json.encode(body)
    except UnicodeEncodeError as error:
        raise RequestError(f"The prompt must be UTF-8 text ({error}).", param="prompt") from None
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = urllib.request.Request(  # noqa: S310 - the scheme has just been checked
        f"{url.rstrip('/')}/cache/explain", data, headers
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310 - as above
            return msgspec.json.decode(reply.read(), type=Explanation)
    except urllib.error.HTTPError as error:
        with error:
            message = _message(error.read(), error.code, url)
        if error.code in (401, 403):
            message += f" Give an operator's with --api-key-file, or in ${KEY_VARIABLE}."
        raise (RequestError if error.code < 500 else ExecutionError)(message) from None
    except (OSError, HTTPException, ValueError) as error:
        why = getattr(error, "reason", None) or error
        advice = "Start 'milepost serve', or name its address with --url."
        if isinstance(why, ssl.SSLCertVerificationError):
            advice = "Name the file of the authority that signed its certificate in $SSL_CERT_FILE."
        raise ConfigError(f"{url} gives no explanation: {why}. {advice}") from None


def _message(body: bytes, status: int, url: str) -> str:
    """What the server says of an error; another server may say it in any form."""
    try:
        return str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, LookupError, TypeError):
        return (
            f"{url} answered with status {status}. Is a 'milepost serve' there? Name its address with --url."
        )


# --- at the terminal --------------------------------------------------------------------------------


def _print(explanation: Explanation) -> None:
    console = results()
    computed = explanation.prompt_tokens - explanation.hit_tokens
    figures = {
        "prompt tokens": explanation.prompt_tokens,
        "with cached KV": explanation.matched_tokens,
        "deepest snapshot at": explanation.deepest_snapshot,
        "would hit": explanation.hit_tokens,
        "would be computed": computed,
    }
    console.print(figures_table("The prompt", {name: f"{count:,}" for name, count in figures.items()}))
    console.print(_snapshots(explanation) if explanation.snapshots else "No snapshot lies on its path.")
    if computed:
        console.print(_losses(explanation))


def _snapshots(explanation: Explanation) -> Table:
    table = Table(title="Snapshots on its path", title_justify="left")
    table.add_column("tokens", justify="right")
    table.add_column("left because of")
    table.add_column("hits", justify="right")
    table.add_column("in")
    for snapshot in explanation.snapshots:
        mark = "  <- resumes here" if snapshot.position == explanation.hit_tokens else ""
        table.add_row(
            f"{snapshot.position:,}", snapshot.reason, f"{snapshot.hits:,}", f"{snapshot.tier}{mark}"
        )
    return table


def _losses(explanation: Explanation) -> Table:
    table = Table(title="Why the rest is computed", title_justify="left")
    table.add_column("tokens", justify="right")
    table.add_column("cause")
    table.add_column("that is")
    for cause, tokens in sorted(explanation.losses.items(), key=lambda loss: -loss[1]):
        table.add_row(f"{tokens:,}", cause, CAUSES.get(cause, ""))
    return table
