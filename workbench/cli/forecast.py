"""`workbench forecast`: what a layout would take on each card, without loading it."""

from collections.abc import Sequence
from typing import Literal

import click
import msgspec

from workbench.cli.run import failed_load
from workbench.cli.text import UNKNOWN, json_text, table
from workbench.domain.card import format_mib
from workbench.domain.forecast import CardForecast, Forecast
from workbench.domain.layout import Layout
from workbench.domain.rules import check_layout
from workbench.domain.split import SplitMode
from workbench.engines.engine import LoadFailed
from workbench.lab.kit import RealKit
from workbench.store.documents import DocumentError, read_layout
from workbench.store.models import ModelError
from workbench.store.places import find_layout


def print_forecast(
    name: str, tensor_split: str | None, split_mode: SplitMode | None, n_ctx: int | None, *, as_json: bool
) -> None:
    """Print the forecast of a layout with these changes. Raises click.UsageError, DocumentError, EngineError."""
    path = find_layout(name)
    layout = changed(read_layout(path), tensor_split, split_mode, n_ctx)
    for key, message in check_layout(layout):
        raise click.UsageError(f"{key} {message}")
    if layout.served_by is not None:
        raise DocumentError.at(path, "engine", f"is {layout.engine}: what a server holds no forecast knows")
    kit = RealKit(spare=False)
    try:
        answer = kit.forecasts.forecast(layout)
    except LoadFailed as error:
        raise failed_load(path, error) from error
    except ModelError as error:
        raise DocumentError.at(path, error.key, error.message) from error
    finally:
        kit.close()
    click.echo(forecast_json(answer) if as_json else forecast_text(answer))


def changed(layout: Layout, tensor_split: str | None, split_mode: SplitMode | None, n_ctx: int | None) -> Layout:
    """The layout with what the options say. Raises click.UsageError."""
    split, context = layout.split, layout.context
    if split_mode is not None:
        shares = split.tensor_split if split.layers is None else tuple(float(count) for count in split.layers)
        split = msgspec.structs.replace(split, split_mode=split_mode, tensor_split=shares, layers=None)
    if tensor_split is not None:
        split = msgspec.structs.replace(split, tensor_split=_shares(tensor_split), layers=None)
    if n_ctx is not None:
        context = msgspec.structs.replace(context, n_ctx=n_ctx)
    return msgspec.structs.replace(layout, split=split, context=context)


def _shares(text: str) -> tuple[float, ...] | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return tuple(float(share) for share in text.split(","))
    except ValueError:
        raise click.UsageError(f"--tensor-split {text}: write proportions such as 3,1, or auto") from None


def forecast_json(forecast: Forecast) -> str:
    """One object; sizes in MiB, null where unknown."""
    value = {
        "source": forecast.source,
        "fits": forecast.fits,
        "split": forecast.split.label(),
        "n_ctx": forecast.n_ctx,
        "cards": [_row(card) for card in forecast.cards],
        "host": _row(forecast.host),
        "max_n_ctx": forecast.max_n_ctx,
    }
    return json_text(value)


def _row(card: CardForecast) -> dict[str, object]:
    fields = ("name", "layers", "weights_mib", "kv_mib", "compute_mib", "other_mib", "total_mib", "q8_mib", "free_mib")
    row = {field: getattr(card, field) for field in (*fields, "fits")}
    return {field: round(value, 2) if isinstance(value, float) else value for field, value in row.items()}


def forecast_text(forecast: Forecast) -> str:
    """A line a card, and the verdict."""
    rows: list[Sequence[str]] = [("card", "layers", "weights", "KV", "compute", "other", "total", "free")]
    for card in (*forecast.cards, forecast.host):
        sizes = (card.weights_mib, card.kv_mib, card.compute_mib, card.other_mib, card.total_mib, card.free_mib)
        cells = (UNKNOWN if size is None else format_mib(size) for size in sizes)
        rows.append((card.name, UNKNOWN if card.layers is None else str(card.layers), *cells))
    source = f"{forecast.split.label()} · n_ctx {forecast.n_ctx} · by {_SPOKE[forecast.source]}"
    learned = max((card.loads for card in forecast.cards), default=0)
    if learned:
        source += f" · other by {learned} past load{'' if learned == 1 else 's'}"
    verdict = " · ".join(filter(None, (forecast.sentence(), forecast.limits())))
    return "\n".join((source, table(rows), verdict))


_SPOKE = {"llama.cpp": "llama.cpp's own simulation", "gguf header": "the model's header"}
