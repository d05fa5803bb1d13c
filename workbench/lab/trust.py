"""Where a layout may lead: it may be a stranger's, so keys and distant cards need the user's own word.

That word stands in `config.yaml`, as `api_keys` and `rpc_servers`.
"""

from urllib.parse import urlsplit

from workbench.domain.layout import Layout
from workbench.domain.servers import is_here
from workbench.domain.split import Virtual
from workbench.engines.engine import LoadFailed
from workbench.lab.plan import RPC_PREFIX
from workbench.store.places import places, read_config


def check_key(layout: Layout) -> None:
    """Whether the key that the layout names may go to its server. Raises LoadFailed, DocumentError."""
    name, url = layout.api_key_env, layout.served_by
    if name is None or url is None:
        return
    if _origin(url) in map(_origin, read_config().api_keys.get(name, ())):
        return
    parts = urlsplit(url)
    raise LoadFailed(
        f"the key in {name} is not sent to {parts.netloc} before you allow it: write `api_keys: {{{name}: "
        f"[{parts.scheme}://{parts.netloc}]}}` in {places().config / 'config.yaml'}",
        key="api_key_env",
    )


def check_cards(layout: Layout) -> None:
    """Whether the layout's RPC servers are of this machine, or allowed. Raises LoadFailed, DocumentError.

    An RPC server is given the model's weights and all that is said, and its answers are trusted.
    """
    cards = layout.split.cards
    if cards is None or isinstance(cards, Virtual):
        return
    for at, card in enumerate(cards):
        endpoint = card.removeprefix(RPC_PREFIX)
        if endpoint == card or is_here(card):
            continue
        if endpoint.lower() not in map(str.lower, read_config().rpc_servers):
            raise LoadFailed(
                f"{endpoint} is not this machine: it would be given the model and all that is said. To allow it, write "
                f"`rpc_servers: [\"{endpoint}\"]` in {places().config / 'config.yaml'}",
                key=f"split.cards[{at}]",
            )


def _origin(url: str) -> tuple[str, str, int]:
    """Scheme, host and port of an address."""
    parts = urlsplit(url)
    return parts.scheme, (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme == "https" else 80)
