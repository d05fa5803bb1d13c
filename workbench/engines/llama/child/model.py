"""One model loaded one way: devices chosen, weights loaded, context made, all of it measured."""

import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as llama

from workbench.domain.layout import Context
from workbench.domain.split import apportion, n_gpu_layers_asked
from workbench.engines.engine import EngineError, Loaded, LoadFailed, ModelInfo
from workbench.engines.llama.child import native
from workbench.engines.llama.child.cards import CardFailedToStart, Refused, VirtualCards
from workbench.engines.llama.child.header import HeaderError, largest_tensor_mib, read_header
from workbench.engines.llama.child.loadlog import LoadLog
from workbench.engines.llama.child.measure import ProcessMeter, UsedCard, read_log
from workbench.engines.llama.child.params import context_params, model_params
from workbench.engines.llama.child.reasons import explain, no_room, plain
from workbench.engines.llama.wire import Load, WireCard

CONNECT_TIMEOUT_S = 3.0
_HELLO = struct.pack("<BQ24x", 14, 24)
"""The first command of llama.cpp's RPC protocol: its number, the size of what follows, no special abilities."""
STAGING_MIB = 64.0
"""At least so much passes to a virtual card at once: tensors, and a layer's part of a conversation's state."""
ProgressSink = Callable[[float, str], None]


class Model:
    """The model of this process: `load` once, then `context` serves. Everything is freed by exit."""

    def __init__(self, log: native.LibraryLog, virtual: VirtualCards, abort: native.AbortFlag) -> None:
        self._virtual = virtual
        self._abort = abort
        self._log = LoadLog()
        log.listen(self._log.read)
        self._cards: list[UsedCard] = []
        self.context: ctypes.c_void_p | None = None
        self._doing = "weights"
        self._connecting: str | None = None
        """The RPC endpoint that is being greeted."""

    @property
    def remote(self) -> bool:
        """Whether a card is behind an RPC server."""
        return any(card.endpoint for card in self._cards)

    @property
    def info(self) -> ModelInfo:
        """The header of the loaded model."""
        return self._info

    def load(self, command: Load, progress: ProgressSink) -> Loaded:
        """Load weights and make the context. Raises LoadFailed."""
        started = time.monotonic()
        try:
            self._info = read_header(Path(command.model_path))
        except HeaderError as error:
            raise LoadFailed(str(error), key="model") from error
        self._split = command.split
        progress(0.0, "starting cards")
        self._use_cards(command, progress)
        shares = self._shares(command.cards)
        self._meter = ProcessMeter(self._cards) if self._split.split_mode == "tensor" else None
        if self._meter:
            self._meter.mark("start")
        self._log.start()
        self._load_weights(command, shares, progress)
        if self._meter:
            self._meter.mark("weights")
        progress(1.0, "making the context")
        return self._make_context(command.context, started)

    def new_context(self, context: Context) -> Loaded:
        """Free the context and make another on the same weights. Raises LoadFailed."""
        started = time.monotonic()
        if self.context is not None:
            llama.llama_free(self.context)
            self.context = None
        return self._make_context(context, started)

    def no_room(self) -> LoadFailed | None:
        """The card that refused a buffer since the last load or context, as an error; None if none did."""
        refused = self._refused()
        if refused is None:
            return None
        message, key = no_room(refused.card, self._doing)
        return LoadFailed(
            message, card=refused.card, wanted_mib=refused.wanted_mib, free_mib=refused.free_mib, key=key
        )

    def why_aborted(self, message: str) -> EngineError:
        """What the library's last message means here."""
        if (no_room := self.no_room()) is not None:
            return no_room
        remote = [card for card in self._cards if card.endpoint and card.virtual is None]
        if self._connecting is not None:
            return EngineError(
                f"what answers at {self._connecting} is no RPC server of this llama.cpp's version; "
                "start `ggml-rpc-server` of the same version there",
                key="split.cards",
            )
        if remote and "RPC server" in message:
            places = " or ".join(f"{card.name} at {card.endpoint}" for card in remote)
            return EngineError(f"{places} does not answer any more", card=remote[0].name if len(remote) == 1 else None)
        if (known := explain([message])) is not None:
            return EngineError(known.message, key=known.key)
        return EngineError(f"llama.cpp gave up: {plain(message)}")

    def _refused(self) -> Refused | None:
        refusal = self._log.refusal
        if refusal is None:
            return self._virtual.refused()
        card = next((card for card in self._cards if card.owns(refusal.buffer)), None)
        if card is None:
            return Refused(refusal.buffer, refusal.mib, None)
        return Refused(card.name, refusal.mib, card.free_mib())

    def _check_room(self) -> None:
        """Hold each virtual card to its size. Raises LoadFailed."""
        over = self._virtual.refused()
        if over is not None and (failure := self.no_room()) is not None:
            raise failure

    def _use_cards(self, command: Load, progress: ProgressSink) -> None:
        sizes = {card.name: card.virtual_mib for card in command.cards if card.virtual_mib is not None}
        if sizes and not llama.llama_supports_rpc():
            raise LoadFailed(
                "virtual cards need llama-cpp-python built with RPC, and this one is not; "
                "rebuild with CMAKE_ARGS=-DGGML_RPC=ON (`make venv` does)",
                key="split.cards",
            )
        try:
            staging_mib = max(STAGING_MIB, largest_tensor_mib(Path(command.model_path)))
            self._virtual.start(sizes, staging_mib, command.card_threads)
        except CardFailedToStart as error:
            raise LoadFailed(str(error), key="split.cards") from error
        for card in command.cards:
            if card.endpoint is not None:
                progress(0.0, f"connecting to {card.endpoint}")
            self._cards.append(self._use(card))

    def _use(self, card: WireCard) -> UsedCard:
        if card.device is not None:
            device = native.device_named(card.device)
            if device is None:
                names = ", ".join(native.device_name(device) for device in native.devices())
                raise LoadFailed(f"there is no card {card.device} here; there are: {names}", key="split.cards")
            return UsedCard(card.name, device)
        virtual = self._virtual.by_name.get(card.name)
        endpoint = virtual.endpoint if virtual else card.endpoint
        assert endpoint is not None
        if virtual is None:
            self._check_endpoint(card.name, endpoint)
        self._connecting = endpoint
        devices = native.add_rpc_server(endpoint)
        self._connecting = None
        if not devices:
            raise LoadFailed(f"the RPC server at {endpoint} offers no device", card=card.name, key="split.cards")
        return UsedCard(card.name, devices[0], endpoint, virtual)

    def _check_endpoint(self, name: str, endpoint: str) -> None:
        if not llama.llama_supports_rpc():
            raise LoadFailed(
                f"{name} is an RPC card, and llama-cpp-python is built without RPC; "
                "rebuild with CMAKE_ARGS=-DGGML_RPC=ON (`make venv` does)",
                key="split.cards",
            )
        host, _, port = endpoint.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S) as connection:
                if _is_silent(connection):
                    raise LoadFailed(
                        f"what listens at {endpoint} does not answer: it is another server than `ggml-rpc-server`, "
                        "or serves another client, and one is all it serves",
                        card=name,
                        key="split.cards",
                    )
        except (OSError, ValueError) as error:
            raise LoadFailed(
                f"no RPC server answers at {endpoint} ({error}); start one there with "
                f"`ggml-rpc-server --host {host or '127.0.0.1'} --port {port}`",
                card=name,
                key="split.cards",
            ) from error

    def _shares(self, cards: tuple[WireCard, ...]) -> tuple[float, ...]:
        split = self._split
        if split.layers is not None:
            return tuple(float(count) for count in split.layers)
        if not isinstance(split.tensor_split, str):
            return split.tensor_split
        if split.split_mode == "none" or not self._cards:
            return ()
        free = [
            card.free_mib() if wire.free_mib is None else wire.free_mib
            for card, wire in zip(self._cards, cards, strict=True)
        ]
        counts = apportion(n_gpu_layers_asked(split, self._info.n_layer), free)
        return tuple(float(count) for count in counts)

    def _load_weights(self, command: Load, shares: tuple[float, ...], progress: ProgressSink) -> None:
        last = [-1]

        @llama.llama_progress_callback  # type: ignore[untyped-decorator]
        def moved(fraction: float, _data: ctypes.c_void_p) -> bool:
            percent = int(fraction * 100)
            if percent != last[0]:
                last[0] = percent
                progress(fraction, "loading weights")
            return not self._abort

        params = model_params(self._split, self._info.n_layer, [card.device for card in self._cards], shares)
        params.progress_callback = moved
        self._model = llama.llama_model_load_from_file(command.model_path.encode(), params)
        if not self._model:
            raise self._failure("the model did not load", "model")
        self._check_room()

    def _make_context(self, context: Context, started: float) -> Loaded:
        self._log.start_context()
        self._doing = "context"
        if self._meter:
            meter = self._meter
            self._log.on_kv = lambda: meter.mark("kv")
            meter.mark("weights")
        params = context_params(context, self._info.n_ctx_train)
        params.abort_callback = self._abort.callback
        params.abort_callback_data = self._abort.data
        made = llama.llama_init_from_model(self._model, params)
        if not made:
            raise self._failure("the context could not be made", "context")
        self.context = made
        self._warm_up()
        self._check_room()
        self._doing, self._log.refusal = "reply", None  # a refusal that llama.cpp found a way around
        cards, host = read_log(self._log, self._cards)
        places: tuple[str, ...] = ()
        if self._meter:
            self._meter.mark("end")
            cards = self._meter.read(self._log)
        else:
            names = {card.device_name: card.name for card in self._cards}
            places = tuple(names.get(place, place) for _, place in sorted(self._log.places.items()))
        return Loaded(
            model=self._info,
            cards=cards,
            host=host,
            places=places,
            n_ctx=llama.llama_n_ctx(made),
            flash_attn=self._log.flash_attn,
            template="",
            template_is_fallback=False,
            load_s=time.monotonic() - started,
            pid=os.getpid(),
            card_processes=tuple(card.describe() for card in self._virtual.by_name.values()),
        )

    def _warm_up(self) -> None:
        vocab = llama.llama_model_get_vocab(self._model)
        token = max(llama.llama_vocab_bos(vocab), 0)
        one = (llama.llama_token * 1)(token)
        llama.llama_decode(self.context, llama.llama_batch_get_one(one, 1))
        llama.llama_synchronize(self.context)
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def _failure(self, otherwise: str, key: str) -> LoadFailed:
        known = explain(self._log.errors)
        if known is not None:
            return LoadFailed(known.message, key=known.key)
        return self.no_room() or LoadFailed(self._log.reason(otherwise), key=key)

    @property
    def handle(self) -> Any:
        """llama.cpp's model."""
        return self._model


def _is_silent(server: socket.socket) -> bool:
    """Whether it does not answer llama.cpp's first words. What it answers is left for llama.cpp to judge."""
    with contextlib.suppress(ConnectionError):
        server.sendall(_HELLO)
        try:
            server.recv(1)
        except TimeoutError:
            return True
    return False
