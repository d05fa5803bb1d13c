"""The user's configuration."""

import msgspec


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config.yaml` in the config folder; all of it may be left out.

    `model_folders` are the folders in which models are looked for, instead of the usual ones.
    """

    model_folders: tuple[str, ...] | None = None
