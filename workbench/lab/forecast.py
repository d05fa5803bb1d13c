"""Forecasts for drafts: worked out by a helper, put against what is free, checked after the load."""

import threading
from collections.abc import Callable, Sequence

import msgspec

from workbench.domain import forecast as domain
from workbench.domain.card import Card
from workbench.domain.forecast import CardAccount, Forecast, Room
from workbench.domain.layout import Layout
from workbench.domain.memory import CardMemory
from workbench.domain.split import Split
from workbench.engines.engine import EngineError, Loaded
from workbench.engines.llama.forecaster import Forecaster
from workbench.engines.llama.wire import Load, Simulate, Simulated, WireCard
from workbench.lab.plan import plan_load
from workbench.lab.rooms import Rooms, Running, with_virtual
from workbench.store.load_errors import LoadErrors
from workbench.store.models import ModelError, resolve_model
from workbench.store.places import places

HELPER_ROOM_MIB = 1024.0
"""A CUDA card with less free than this has no room for the helper's context: stand-ins take its place."""
QUIET_S = 0.2
"""A pause between two keys after which the limits are worked out too."""
REMEMBERED = 256
"""Forecasts that are kept for the load that may follow."""
CLOSE_S = 2.0
"""How long an answer that nobody wants any more is waited for."""
MOVES = 12
"""Layers that an automatic split moves at most from a card where they do not fit."""

Answer = Forecast | EngineError | ModelError


class Forecasts:
    """Answers one draft at a time. `cards` lists the machine's cards for a layout's environment.

    `by_header` asks the second source where the first would speak. `release` must come before
    a load on real cards: the helper holds memory there.
    """

    def __init__(self, cards: Callable[[Layout], Sequence[Card]], *, by_header: bool = False) -> None:
        self._cards = cards
        self._by_header = by_header
        self._errors = LoadErrors(places().state)
        self._forecaster = Forecaster(places().engine_log)
        self._rooms = Rooms(cards, self._errors)
        self._used_before: dict[str, float] = {}
        self._known: dict[bytes, Forecast] = {}
        self._loading = False

    def forecast(self, layout: Layout, running: Running | None = None, *, limits: bool = True) -> Forecast:
        """What `layout` would take, against what is free once `running` is gone.

        `limits` asks for the largest n_ctx and the figures with q8_0 KV too. Raises LoadFailed
        where it cannot load, ModelError.
        """
        layout = self.resolve(layout, running)
        load, rooms = self._plan(layout, running)
        wanted = tuple(None if room.free_mib is None else room.free_mib - room.other_mib for room in rooms)
        found = self._simulate(layout, load, rooms, room_mib=wanted if limits else None)
        # Asked again: the helper's first look at the cards tells what it holds there itself.
        rooms = with_virtual(self._plan(layout, running)[1], load, found.cards)
        answer = domain.forecast(
            source=found.source,
            split=layout.split,
            cards=found.cards,
            host=found.host,
            n_ctx=found.n_ctx,
            rooms=rooms,
            running=running.loaded.cards if running else (),
            max_n_ctx=found.max_n_ctx,
            q8_cards=found.q8_cards,
        )
        if len(self._known) >= REMEMBERED:
            self._known.clear()
        self._known[_key(layout)] = answer
        return answer

    def resolve(self, layout: Layout, running: Running | None = None) -> Layout:
        """`tensor_split: auto` as explicit counts or shares. Raises LoadFailed, ModelError."""
        split = layout.split
        if split.split_mode == "none" or split.layers is not None or split.tensor_split != "auto":
            return layout
        load, rooms = self._plan(layout, running)
        rooms = rooms[:-1]
        if not rooms or any(room.free_mib is None for room in rooms):
            return layout
        alone = Split(split_mode="none", n_gpu_layers=split.n_gpu_layers, cards=split.cards)
        found = self._simulate(_with_split(layout, alone), msgspec.structs.replace(load, split=alone), rooms)
        n_layer = sum(card.layers or 0 for card in (*found.cards, found.host)) - 1
        copied = self._copied(layout, load, rooms, found.cards[0]) if split.split_mode == "tensor" else 0.0
        resolved = domain.resolve_auto(split, n_layer, found.cards[0], rooms, copied_mib=copied)
        return self._even_out(_with_split(layout, resolved), load, rooms)

    def release(self) -> None:
        """End the helper; it holds no memory when this returns."""
        self._forecaster.release()
        self._rooms.forget_helper()

    def before_load(self, layout: Layout) -> None:
        """End the helper and note what is used, so that `after_load` knows what the load took.

        Until `after_load` a helper uses stand-ins for all cards.
        """
        self._loading = True
        self.release()
        load = plan_load(layout, "", lambda: self._cards(layout))
        self._used_before = self._rooms.used_mib(layout, load.cards)

    def after_load(self, layout: Layout, loaded: Loaded | None) -> tuple[CardAccount, ...]:
        """Forecast against measured, by card, and learn from it; empty where nothing was forecast.

        `loaded` None says that the load came to nothing.
        """
        self._loading = False
        known = self._known.get(_key(layout))
        if loaded is None or known is None or len(known.cards) != len(loaded.cards):
            return ()
        cards = plan_load(layout, "", lambda: self._cards(layout)).cards
        used = self._rooms.used_mib(layout, cards)
        taken = {name: max(0.0, mib - self._used_before[name]) for name, mib in used.items()
                 if name in self._used_before}  # fmt: skip
        self._used_before = {}
        accounts = domain.compare(known, loaded.cards, taken, used)
        self._errors.add(_by_key(self._rooms, layout, cards, accounts), layout.split.split_mode)
        return accounts

    def close(self) -> None:
        """End the helper."""
        self.release()
        self._rooms.close()

    # ── the helper ────────────────────────────────────────────────────────────────────────
    def _plan(self, layout: Layout, running: Running | None) -> tuple[Load, list[Room]]:
        load = plan_load(layout, str(resolve_model(layout.model)), lambda: self._cards(layout))
        before: tuple[WireCard, ...] = ()
        if running is not None:
            before = plan_load(running.layout, "", lambda: self._cards(running.layout)).cards
        return load, self._rooms.of(layout, load, running, before)

    def _simulate(
        self, layout: Layout, load: Load, rooms: Sequence[Room], room_mib: tuple[float | None, ...] | None = None
    ) -> Simulated:
        env = layout.env
        if self._no_room_for_helper(load, rooms):
            cards = tuple(WireCard(name=card.name, virtual_mib=0.0) for card in load.cards)
            load, env = msgspec.structs.replace(load, cards=cards), {**env, "CUDA_VISIBLE_DEVICES": ""}
        command = Simulate(load=load, room_mib=room_mib, by_header=self._by_header)
        cold = None if self._forecaster.warm else self._rooms.free_mib(layout, load.cards)
        found = self._forecaster.simulate(command, env)
        if cold is not None:
            self._rooms.note_helper(cold, self._rooms.free_mib(layout, load.cards))
        return found

    def _no_room_for_helper(self, load: Load, rooms: Sequence[Room]) -> bool:
        """Whether the helper may not look at the real cards: its own context would be in the way."""
        real = [
            room.beside_mib or 0.0 for card, room in zip(load.cards, rooms, strict=False) if card.device is not None
        ]
        if not real:
            return False
        return self._loading or (not self._forecaster.warm and min(real) < HELPER_ROOM_MIB)

    # ── tensor_split: auto ────────────────────────────────────────────────────────────────
    def _copied(self, layout: Layout, load: Load, rooms: Sequence[Room], whole: CardMemory) -> float:
        """MiB of weights that tensor mode copies to every card."""
        n_cards = len(load.cards)
        if n_cards < 2:
            return 0.0
        even = msgspec.structs.replace(layout.split, tensor_split=(1.0,) * n_cards)
        found = self._simulate(_with_split(layout, even), msgspec.structs.replace(load, split=even), rooms)
        held = sum(card.weights_mib for card in found.cards)
        return max(0.0, held - whole.weights_mib) / (n_cards - 1)

    def _even_out(self, layout: Layout, load: Load, rooms: Sequence[Room]) -> Layout:
        """Move layers from cards where they do not fit to where there is room: layers are not equal."""
        for _ in range(MOVES):
            counts = layout.split.layers
            if counts is None:
                return layout
            found = self._simulate(layout, msgspec.structs.replace(load, split=layout.split), rooms)
            moved = domain.relieve(counts, found.cards, rooms)
            if moved is None:
                return layout
            layout = _with_split(layout, msgspec.structs.replace(layout.split, layers=moved))
        return layout


class DraftForecasts:
    """Forecasts for an editor: `ask` returns at once, and only the newest draft is answered.

    The listener is called from a thread of this object: with the forecast, again with its
    limits (`max_n_ctx`), or with the error that says why the draft cannot load.
    """

    def __init__(self, forecasts: Forecasts, listener: Callable[[Layout, Answer], None]) -> None:
        self._forecasts = forecasts
        self._listener = listener
        self._changed = threading.Condition()
        self._wanted: tuple[Layout, Running | None] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="forecasts", daemon=True)
        self._thread.start()

    def ask(self, layout: Layout, running: Running | None = None) -> None:
        """Forecast this draft; one that was asked before and is not answered yet is dropped."""
        with self._changed:
            self._wanted = layout, running
            self._changed.notify_all()

    def drop(self) -> None:
        """Nothing is asked any more."""
        with self._changed:
            self._wanted = None

    def close(self) -> None:
        """End the thread; the forecasts' helper is its owner's to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (wanted := self._next()) is not None:
            if self._answer(wanted, limits=False) and self._stays(wanted):
                self._answer(wanted, limits=True)
            with self._changed:
                if self._wanted is wanted:
                    self._wanted = None

    def _next(self) -> tuple[Layout, Running | None] | None:
        with self._changed:
            while self._wanted is None and not self._closed:
                self._changed.wait()
            return None if self._closed else self._wanted

    def _stays(self, wanted: tuple[Layout, Running | None]) -> bool:
        """Whether nothing newer is asked for a moment: the limits must not delay the next key's answer."""
        with self._changed:
            return not self._changed.wait_for(lambda: self._closed or self._wanted is not wanted, QUIET_S)

    def _answer(self, wanted: tuple[Layout, Running | None], *, limits: bool) -> bool:
        """Work it out and tell; whether it was told, is a forecast and still is the newest."""
        layout, running = wanted
        try:
            answer: Answer = self._forecasts.forecast(layout, running, limits=limits)
        except (EngineError, ModelError) as error:
            answer = error
        with self._changed:
            overtaken = self._closed or self._wanted is not wanted
        if not overtaken:
            self._listener(layout, answer)
        return not overtaken and isinstance(answer, Forecast)


def _with_split(layout: Layout, split: Split) -> Layout:
    return msgspec.structs.replace(layout, split=split)


def _key(layout: Layout) -> bytes:
    """What layouts have in common that take the same memory."""
    context = msgspec.structs.replace(layout.context, flash_attn="auto", n_threads="auto")
    return msgspec.json.encode((layout.model, layout.split, context))


def _by_key(
    rooms: Rooms, layout: Layout, cards: Sequence[WireCard], accounts: Sequence[CardAccount]
) -> dict[str, float]:
    """The error of each card by what tells it from others; virtual cards are alike, and their worst counts."""
    errors: dict[str, float] = {}
    for card, account in zip(cards, accounts, strict=True):
        if not rooms.apart(layout, card):
            continue
        key = rooms.key(layout, card)
        errors[key] = max(errors.get(key, account.error_mib), account.error_mib)
    return errors


def said(answer: Answer) -> str:
    """The answer in one sentence."""
    if isinstance(answer, Forecast):
        return answer.sentence()
    return f"cannot load: {answer.message if isinstance(answer, ModelError) else answer.reason}"
