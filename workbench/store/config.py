"""The user's configuration, and the user's keys."""

from typing import Any

import msgspec

from workbench.domain.duty import Price


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config.yaml` in the config folder; all of it may be left out.

    `model_folders` are the folders in which models are looked for, instead of the usual ones.
    `price` tells what running costs, for tokens per unit of money. `api_keys` names the addresses
    to which the key in an environment variable may go, `rpc_servers` those beyond this machine
    (`host:port`) that layouts may use as cards.
    """

    model_folders: tuple[str, ...] | None = None
    price: Price | None = None
    api_keys: dict[str, tuple[str, ...]] = {}
    rpc_servers: tuple[str, ...] = ()


class UserKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`keymap.yaml` in the config folder: a key or a list of keys by the name of an action."""

    keys: dict[str, Any] = {}
