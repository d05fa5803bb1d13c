"""What a session knows before it loads, and learns from the load."""

import contextlib
import threading
from collections.abc import Iterator

import msgspec

from workbench.domain.card import format_mib
from workbench.domain.forecast import CardAccount, misplaced
from workbench.domain.layout import EngineName, Layout
from workbench.domain.split import Split
from workbench.engines.engine import EngineError, Loaded, LoadFailed
from workbench.lab.forecast import Forecasts
from workbench.lab.rooms import Running
from workbench.store.models import ModelError

N_CTX_STEP, N_CTX_LEAST = 256, 512
PARTS_ON_CARDS = (0.75, 0.5, 0.25, 0.0)
"""Parts of the layers to leave on the cards, tried in this order where all of them do not fit."""


class Blind:
    """Knows nothing: for engines that no forecast reaches."""

    def resolve(self, layout: Layout, running: Running | None) -> Layout:
        """`tensor_split: auto` made explicit. Raises LoadFailed, ModelError."""
        return layout

    def beside(self, following: Layout, running: Running) -> bool:
        """Whether both fit at once."""
        return False

    def before_load(self, layout: Layout) -> None:
        """A load begins, and the old engine is gone if it had to be."""

    def after_load(self, layout: Layout, loaded: Loaded | None) -> tuple[CardAccount, ...]:
        """Forecast against measured, by card; `loaded` None says that the load came to nothing."""
        return ()

    def misplaced(self, layout: Layout, loaded: Loaded) -> tuple[str, ...]:
        """A sentence for each card on which other layers landed than were asked for."""
        return misplaced(layout.split, loaded.model.n_layer, loaded.cards)

    def nearest(self, layout: Layout, running: Running | None) -> tuple[Layout, str] | None:
        """The layout nearest to one that did not fit that does, and a sentence; None where none is found."""
        return None

    def after(self, error: Exception, layout: Layout, running: Running | None) -> tuple[Layout, str] | None:
        """The nearest layout where it was memory that ended; None after any other failure."""
        if isinstance(error, EngineError) and error.wanted_mib is not None:
            return self.nearest(layout, running)
        return None


class Foresight(Blind):
    """Asks the forecasts. One question at a time: an editor asks them too."""

    def __init__(self, forecasts: Forecasts) -> None:
        self._forecasts = forecasts
        self._asking = threading.Lock()

    def resolve(self, layout: Layout, running: Running | None) -> Layout:
        """See `Blind`. Also refuses what would fill the host's memory, which nothing else does in time."""
        with self._asking:
            layout = self._forecasts.resolve(layout, running)
            if layout.split.n_gpu_layers == "all" and layout.split.cards != ("CPU",):
                return layout
            host = self._forecasts.forecast(layout, running, limits=False).host
        if host.free_mib is not None and host.total_mib > host.free_mib:
            raise LoadFailed(
                f"the host's memory has no room for the layers and the context that stay there"
                f" ({format_mib(host.total_mib)} of {format_mib(host.free_mib)}); a smaller n_ctx, a q8_0 cache or"
                " more layers on cards take less",
                card=host.name,
                wanted_mib=host.total_mib,
                free_mib=host.free_mib,
                key="context.n_ctx",
            )
        return layout

    def beside(self, following: Layout, running: Running) -> bool:
        """See `Blind`."""
        try:
            with self._asking:
                return bool(self._forecasts.forecast(following, running, limits=False).beside)
        except (EngineError, ModelError):
            return False

    def before_load(self, layout: Layout) -> None:
        """See `Blind`."""
        with self._asking:
            self._forecasts.before_load(layout)

    def after_load(self, layout: Layout, loaded: Loaded | None) -> tuple[CardAccount, ...]:
        """See `Blind`."""
        with self._asking:
            return self._forecasts.after_load(layout, loaded)

    def nearest(self, layout: Layout, running: Running | None) -> tuple[Layout, str] | None:
        """See `Blind`. The layers moved; else a smaller n_ctx; else both; else fewer layers on cards."""
        for candidate in self._candidates(layout, running):
            with contextlib.suppress(EngineError, ModelError), self._asking:
                forecast = self._forecasts.forecast(candidate, running, limits=False)
                if forecast.fits and candidate != layout:
                    candidate = msgspec.structs.replace(candidate, split=forecast.split)
                    return candidate, forecast.sentence()
        return None

    def _candidates(self, layout: Layout, running: Running | None) -> Iterator[Layout]:
        moved = _with_split(layout, msgspec.structs.replace(layout.split, tensor_split="auto", layers=None))
        yield moved
        for wanted in (layout, moved):
            n_ctx = self._most_context(wanted, running)
            if n_ctx >= N_CTX_LEAST:
                yield msgspec.structs.replace(wanted, context=msgspec.structs.replace(wanted.context, n_ctx=n_ctx))
        if running is not None and running.layout.model == layout.model:
            positions = running.loaded.model.n_layer + 1
            for part in PARTS_ON_CARDS:
                yield _with_split(moved, msgspec.structs.replace(moved.split, n_gpu_layers=int(positions * part)))

    def _most_context(self, layout: Layout, running: Running | None) -> int:
        try:
            with self._asking:
                most = self._forecasts.forecast(layout, running).max_n_ctx or 0
        except (EngineError, ModelError):
            return 0
        return most // N_CTX_STEP * N_CTX_STEP


class Sighted(Blind):
    """Sees where the engine is llama.cpp, and is blind to servers: what they hold, they say only themselves."""

    def __init__(self, foresight: Foresight) -> None:
        self._sight: dict[EngineName, Blind] = {"llama.cpp": foresight}
        self._blind = Blind()

    def _for(self, layout: Layout) -> Blind:
        return self._sight.get(layout.engine, self._blind)

    def _seen(self, running: Running | None) -> Running | None:
        return running if running is not None and running.layout.engine in self._sight else None

    def resolve(self, layout: Layout, running: Running | None) -> Layout:
        """See `Blind`."""
        return self._for(layout).resolve(layout, self._seen(running))

    def beside(self, following: Layout, running: Running) -> bool:
        """See `Blind`. What a server holds is no part of any forecast, so nothing is loaded beside it."""
        return self._seen(running) is not None and self._for(following).beside(following, running)

    def before_load(self, layout: Layout) -> None:
        """See `Blind`."""
        self._for(layout).before_load(layout)

    def after_load(self, layout: Layout, loaded: Loaded | None) -> tuple[CardAccount, ...]:
        """See `Blind`."""
        return self._for(layout).after_load(layout, loaded)

    def misplaced(self, layout: Layout, loaded: Loaded) -> tuple[str, ...]:
        """See `Blind`. A server does not tell which card holds what."""
        return () if loaded.served else self._for(layout).misplaced(layout, loaded)

    def nearest(self, layout: Layout, running: Running | None) -> tuple[Layout, str] | None:
        """See `Blind`."""
        return self._for(layout).nearest(layout, self._seen(running))


def _with_split(layout: Layout, split: Split) -> Layout:
    return msgspec.structs.replace(layout, split=split)
