"""API keys: read from a TOML file and the environment, and matched without telling how near a guess was.

    [tenants.search]
    keys = ["sha256:9f86d081884c7d65..."]   # of the key: `printf %s "$KEY" | sha256sum`
    max_requests = 16

    [tenants.ops]
    key_file = "ops.key"                     # beside this file; the key is its only line
    operator = true

Everything but the keys is optional; a tenant may have several, so that a new one can replace an old one.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from milepost.error_text import nearest
from milepost.errors import ConfigError
from milepost.server.access.tenants import Tenant, TenantLimits

__all__ = ["ENVIRONMENT_NAME", "MIN_KEY_CHARS", "KeyRing", "read_keys"]

ENVIRONMENT_NAME = "MILEPOST_API_KEYS"
MIN_KEY_CHARS = 16
"""Shorter keys could be guessed, and their hashes undone."""

MAX_KEY_CHARS = 512
MIN_SALT_CHARS = 16
_HASHED = "sha256:"
_HOW_TO = "`openssl rand -hex 32` makes a good one"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY = re.compile(r"[\x21-\x7e]+")  # what a header can carry
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_FILE_BYTES = 1 << 20


class _TenantEntry(TenantLimits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""

    keys: tuple[str, ...] = ()
    key_file: str | None = None
    salt: str | None = None
    operator: bool = False


class _KeyFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenants: dict[str, _TenantEntry] = {}


class KeyRing:
    """All keys that open the server; only their hashes are kept.

    Args:
        tenants: SHA-256 of each key, and whose it is.
    """

    def __init__(self, tenants: Mapping[bytes, Tenant]) -> None:
        self._tenants = dict(tenants)

    def __bool__(self) -> bool:
        return bool(self._tenants)

    @property
    def tenants(self) -> dict[str, Tenant]:
        """All whose keys these are, by name."""
        return {tenant.name: tenant for tenant in self._tenants.values()}

    def tenant(self, key: str) -> Tenant | None:
        """Whose key this is, or None; takes as long for a near guess as for a far one."""
        given = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()
        found = None
        for digest, tenant in self._tenants.items():
            if hmac.compare_digest(digest, given):
                found = tenant  # and on to the end: its place in the file is told by no clock either
        return found


def read_keys(file: str | None, environment: Mapping[str, str]) -> tuple[KeyRing, list[str]]:
    """The keys of a file and of the environment, and what whoever runs the server should know of them.

    Args:
        file: path of the TOML file, or None.
        environment: whose ``MILEPOST_API_KEYS`` holds keys separated by commas, each bare or as ``name=key``.

    Raises:
        ConfigError: it can't be read, a key is unfit or belongs to two tenants, an unknown field, ...
    """
    holders: dict[bytes, Tenant] = {}
    notes: list[str] = []
    if file is not None:
        path = Path(file)
        entries = _read_file(path)
        notes += _looseness(path, entries)
        for name, entry in entries.items():
            _add(holders, _tenant(name, entry), _secrets(path, name, entry))
    _add_environment(holders, environment.get(ENVIRONMENT_NAME, ""))
    if file is not None and not holders:
        raise ConfigError(f"api_keys: {file} names no tenant. Give one: [tenants.NAME] with keys = [...].")
    return KeyRing(holders), notes


def _read_file(path: Path) -> dict[str, _TenantEntry]:
    content = _read_small(path, "api_keys")
    try:
        return msgspec.toml.decode(content, type=_KeyFile).tenants
    except msgspec.ValidationError as error:
        raise ConfigError(f"api_keys: {path}: {error}.{_hint(str(error))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"api_keys: {path} is not TOML: {error}.") from None


def _read_small(path: Path, what: str) -> bytes:
    if "\0" in str(path):
        raise ConfigError(f"{what} must not hold a character of code 0. Given: {str(path)!r:.100}.")
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{what}: can't read {path}: {error.strerror}.") from None
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigError(f"{what}: {path} must have at most {_MAX_FILE_BYTES} bytes.")
    return content


def _hint(message: str) -> str:
    unknown = re.search(r"unknown field `(.*?)`", message)
    if unknown is None:
        return ""
    known = [field.name for field in msgspec.structs.fields(_TenantEntry)]
    if " - at `" in message:
        return nearest(unknown[1], known)
    if unknown[1] in known:  # at the top, where only tables of tenants stand
        return f" {unknown[1]!r} stands in no tenant's table. Put it under [tenants.NAME]."
    return nearest(unknown[1], ["tenants"])


def _looseness(path: Path, entries: Mapping[str, _TenantEntry]) -> list[str]:
    """Files that hold secrets and that others can read, and files that others can write."""
    secret = any(
        entry.salt or any(not key.startswith(_HASHED) for key in entry.keys) for entry in entries.values()
    )
    notes = _looseness_of(path, secret=secret)
    for name, entry in entries.items():
        if entry.key_file is not None:
            file = path.parent / entry.key_file
            notes += _looseness_of(file, secret=not _key_in(file, name).startswith(_HASHED))
    return notes


def _looseness_of(path: Path, *, secret: bool) -> list[str]:
    mode = path.stat().st_mode
    if secret and mode & (stat.S_IRGRP | stat.S_IROTH):
        return [f"{path} holds secrets and others can read it: chmod 600, or keep keys as sha256:HASH."]
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        return [f"Others can write {path}, and so give themselves a key: chmod go-w."]
    return []


def _tenant(name: str, entry: _TenantEntry) -> Tenant:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            "api_keys: a tenant's name must be up to 64 letters, digits, '.', '_' and '-'. "
            f"Given: {name!r:.100}."
        )
    limits = {field.name: getattr(entry, field.name) for field in msgspec.structs.fields(TenantLimits)}
    for limit, value in limits.items():
        if limit != "min_priority" and value is not None and value < 1:
            raise ConfigError(f"api_keys: {limit} of {name} must be at least 1. Given: {value}.")
    if entry.salt is not None and len(entry.salt) < MIN_SALT_CHARS:
        raise ConfigError(
            f"api_keys: salt of {name} must have at least {MIN_SALT_CHARS} characters: {_HOW_TO}. "
            f"Given: {len(entry.salt)}."
        )
    # By name where none is given: a tenant's new key finds what its old one cached.
    given = f"salt {entry.salt}" if entry.salt is not None else f"name {name}"
    salt = hashlib.blake2b(given.encode(), digest_size=32, person=b"milepost salt").digest()
    return Tenant(name=name, salt=salt, limits=TenantLimits(**limits), operator=entry.operator)


def _secrets(path: Path, name: str, entry: _TenantEntry) -> list[str]:
    keys = list(entry.keys)
    if entry.key_file is not None:
        keys.append(_key_in(path.parent / entry.key_file, name))
    if not keys:
        raise ConfigError(f"api_keys: tenant {name} has no key. Give keys = [...] or key_file.")
    return keys


def _key_in(file: Path, tenant: str) -> str:
    """The key that is a file's only line."""
    content = _read_small(file, f"api_keys: key_file of {tenant}")
    return content.decode("utf-8", "replace").strip()


def _add_environment(holders: dict[bytes, Tenant], value: str) -> None:
    taken = {tenant.name for tenant in holders.values()}
    for item in filter(None, (part.strip() for part in value.split(","))):
        # A key may end in "=", as base64 does, and a tenant's name can't hold one.
        name, is_named, key = item.partition("=")
        if not (is_named and key.strip("=") and _NAME.fullmatch(name)):
            key = item
            name = f"key-{_digest(key, ENVIRONMENT_NAME).hex()[:8]}"
        if name in taken:
            raise ConfigError(f"{ENVIRONMENT_NAME}: the file of keys has a tenant {name} too. Rename one.")
        _add(holders, _tenant(name, _TenantEntry()), [key])


def _add(holders: dict[bytes, Tenant], tenant: Tenant, keys: Iterable[str]) -> None:
    for key in keys:
        digest = _digest(key, f"tenant {tenant.name}")
        holder = holders.setdefault(digest, tenant)
        if holder.name != tenant.name:
            raise ConfigError(f"Tenants {holder.name} and {tenant.name} have the same API key.")


def _digest(key: str, where: str) -> bytes:
    """SHA-256 of a key that is given as it is or hashed; errors never show it."""
    if key.startswith(_HASHED):
        digest = key.removeprefix(_HASHED).lower()
        if not _DIGEST.fullmatch(digest):
            raise ConfigError(f"API keys: {where}: behind sha256: must be 64 hexadecimal digits.")
        return bytes.fromhex(digest)
    if not MIN_KEY_CHARS <= len(key) <= MAX_KEY_CHARS:
        raise ConfigError(
            f"API keys: {where}: a key must have {MIN_KEY_CHARS} to {MAX_KEY_CHARS} characters: {_HOW_TO}. "
            f"Given: one of {len(key)}."
        )
    if not _KEY.fullmatch(key):
        raise ConfigError(
            f"API keys: {where}: a key must be printable ASCII without spaces, as a header carries it."
        )
    return hashlib.sha256(key.encode()).digest()
