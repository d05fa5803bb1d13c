"""The forecast's helper: a load simulated by llama.cpp itself, which allocates nothing."""

import ctypes
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import llama_cpp.llama_cpp as llama
import msgspec

from workbench.domain.forecast import FROM_HEADER, FROM_LLAMA, ForecastSource
from workbench.domain.layout import Context
from workbench.domain.memory import CardMemory
from workbench.domain.split import count_layers
from workbench.engines.engine import LoadFailed, ModelInfo
from workbench.engines.llama.child import native
from workbench.engines.llama.child.breakdown import Cut, Unreadable, memory_breakdown
from workbench.engines.llama.child.header import HeaderError, read_header
from workbench.engines.llama.child.loadlog import LoadLog
from workbench.engines.llama.child.measure import META
from workbench.engines.llama.child.native import MIB, ggml
from workbench.engines.llama.child.params import context_params, model_params
from workbench.engines.llama.child.tensors import HeaderTensors, Shapes
from workbench.engines.llama.wire import Load, Simulate, Simulated

STAND_INS = 16
"""As many cards as llama.cpp takes."""
START_TIMEOUT_S = 5.0
N_CTX_STEP = 256
"""llama.cpp rounds n_ctx up to it."""
FAR_N_CTX = 2**18


class StandIns:
    """Devices in place of virtual and remote cards, whose servers serve one client at a time.

    They are served by a thread of this process: a simulation allocates and computes nothing there.
    """

    def __init__(self) -> None:
        self._devices: list[int] = []

    def device(self, index: int) -> int:
        """The `index`-th stand-in. Raises LoadFailed without RPC in llama.cpp."""
        if not self._devices:
            self._devices = self._serve()
        return self._devices[index]

    def _serve(self) -> list[int]:
        if not llama.llama_supports_rpc():
            raise LoadFailed(
                "virtual cards need llama-cpp-python built with RPC, and this one is not; "
                "rebuild with CMAKE_ARGS=-DGGML_RPC=ON (`make venv` does)",
                key="split.cards",
            )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
        cpu = ggml.ggml_backend_dev_by_type(0)
        devices = (ctypes.c_void_p * STAND_INS)(*[cpu] * STAND_INS)
        endpoint = f"127.0.0.1:{port}"
        threading.Thread(
            target=ggml.ggml_backend_rpc_start_server,
            args=(endpoint.encode(), None, ctypes.c_size_t(1), ctypes.c_size_t(STAND_INS), devices),
            daemon=True,
        ).start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return native.add_rpc_server(endpoint)
            except OSError:
                time.sleep(0.005)
        raise LoadFailed("the stand-ins for the cards did not start", key="split.cards")


class ModelFile:
    """A model's header, read once for all drafts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.info: ModelInfo = read_header(path)

    @functools.cached_property
    def shapes(self) -> Shapes:
        """Its tensors."""
        return Shapes(self._path, self.info.n_layer)


@functools.lru_cache(maxsize=2)
def _read(path: Path, _changed_ns: int, _size: int) -> ModelFile:
    return ModelFile(path)


def _file(path: str) -> ModelFile:
    """The header of the model at `path` as it is now. Raises LoadFailed."""
    try:
        status = Path(path).stat()
        return _read(Path(path), status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise LoadFailed(f"{path} cannot be read: {error.strerror}", key="model") from error
    except HeaderError as error:
        raise LoadFailed(str(error), key="model") from error


class Simulation:
    """One simulated model; contexts are made on it again and again. `close` frees it."""

    def __init__(self, load: Load, log: LoadLog, stand_ins: StandIns) -> None:
        self._log = log
        self._load = load
        self._file = _file(load.model_path)
        self.info = self._file.info
        self._names = [card.name for card in load.cards]
        self._devices = _devices(load, stand_ins)
        self._shares = tuple(load.split.layers or ()) or (
            () if isinstance(load.split.tensor_split, str) else load.split.tensor_split
        )
        params = model_params(load.split, self.info.n_layer, self._devices, self._shares)
        params.no_alloc = True
        params.load_mode = llama.LLAMA_LOAD_MODE_NONE
        log.start()
        self._model = llama.llama_model_load_from_file(load.model_path.encode(), params)
        if not self._model:
            raise LoadFailed(log.reason("the model does not load"), key="split")
        places = dict(log.places)
        self._places = places
        device_names = [native.device_name(device) for device in self._devices]
        self._by_device_name = dict(zip(device_names, self._names, strict=True))
        self._layers = count_layers(
            [device_names.index(place) if place in device_names else -1 for _, place in sorted(places.items())],
            len(self._devices),
        )

    @property
    def _cut_by_tensor(self) -> bool:
        return self._load.split.split_mode == "tensor" and len(self._devices) > 0

    def memory(self, context: Context, *, by_header: bool = False) -> Simulated:
        """What the model takes with this context. Raises LoadFailed where it cannot be made.

        llama.cpp keeps a note of each cell, also in a simulation: far contexts are drawn out from near ones.
        """
        if context.n_ctx <= FAR_N_CTX:
            return self._memory(context, by_header)
        half, whole = (
            self._memory(msgspec.structs.replace(context, n_ctx=n_ctx), by_header)
            for n_ctx in (FAR_N_CTX // 2, FAR_N_CTX)
        )
        n_ctx = -(-context.n_ctx // N_CTX_STEP) * N_CTX_STEP
        beyond = (n_ctx - whole.n_ctx) / (whole.n_ctx - half.n_ctx)
        pairs = zip((*half.cards, half.host), (*whole.cards, whole.host), strict=True)
        *cards, host = (_drawn_out(near, far, beyond) for near, far in pairs)
        return msgspec.structs.replace(whole, cards=tuple(cards), host=host, n_ctx=n_ctx)

    def _memory(self, context: Context, by_header: bool) -> Simulated:
        with self._context(context) as made:
            n_ctx = llama.llama_n_ctx(made)
            source: ForecastSource = FROM_HEADER
            if not by_header:
                try:
                    held, source = self._by_llama(made), FROM_LLAMA
                except Unreadable:
                    by_header = True
            if by_header:
                held = self._by_header()
        cards = [
            CardMemory(
                name=name,
                weights_mib=weights / MIB,
                kv_mib=kv / MIB,
                compute_mib=compute / MIB,
                layers=None if self._cut_by_tensor or name == native.HOST else layers,
            )
            for name, (weights, kv, compute), layers in zip(
                [*self._names, native.HOST], held, [*self._layers, 0], strict=True
            )
        ]
        off = self.info.n_layer + 1 - sum(self._layers)
        host = msgspec.structs.replace(cards[-1], layers=None if self._cut_by_tensor else off)
        return Simulated(source=source, cards=tuple(cards[:-1]), host=host, n_ctx=n_ctx)

    def close(self) -> None:
        """Free it."""
        llama.llama_model_free(self._model)

    @contextmanager
    def _context(self, context: Context) -> Iterator[object]:
        self._log.start_context()
        made = llama.llama_init_from_model(self._model, context_params(context, self.info.n_ctx_train))
        if not made:
            raise LoadFailed(self._log.reason("the context cannot be made"), key="context")
        try:
            yield made
        finally:
            llama.llama_free(made)

    def _by_llama(self, context: object) -> list[list[float]]:
        """Bytes by kind of each card and, last, of the host, by llama.cpp's own account."""
        held = [[0.0, 0.0, 0.0] for _ in range(len(self._devices) + 1)]
        for taken in memory_breakdown(context):
            kinds = [float(taken.weights), float(taken.kv), float(taken.compute)]
            if taken.device in self._devices:
                at = self._devices.index(taken.device)
            elif taken.device is not None and native.device_name(taken.device) == META:
                for card, part in enumerate(self._cut(kinds)):
                    held[card] = part
                continue
            else:
                at = len(self._devices)
            held[at] = [a + b for a, b in zip(held[at], kinds, strict=True)]
        return held

    def _cut(self, whole: Sequence[float]) -> list[list[float]]:
        """What each card holds in tensor mode, where llama.cpp accounts for all cards as one."""
        cut = Cut(self._model, len(self._devices))
        parts = cut.kv_parts(
            layer for layer, place in self._places.items() if place == META and layer < self.info.n_layer
        )
        return [[float(weights), whole[1] * part, whole[2]] for weights, part in zip(cut.weights(), parts, strict=True)]

    def _by_header(self) -> list[list[float]]:
        """The same from the header's tensors; the compute buffers and the cache's size by the log."""
        tensors = HeaderTensors(self._file.shapes, self._padded_shares())
        cache, weights, kv = self._log.cache_mib * MIB, tensors.weights(self._places), tensors.kv_parts(self._places)
        device_names = list(self._by_device_name)
        if self._cut_by_tensor:
            cards = [
                [held, part * cache, self._compute(META)]
                for held, part in zip(
                    tensors.cut_weights(self._places, native.HOST),
                    tensors.cut_kv(self._places, native.HOST),
                    strict=True,
                )
            ]
            ours = {META}
        else:
            cards = [[weights.get(name, 0.0), kv.get(name, 0.0) * cache, self._compute(name)] for name in device_names]
            ours = set(device_names)
        host = [
            sum(held for name, held in weights.items() if name not in ours),
            sum(part for name, part in kv.items() if name not in ours) * cache,
            sum(mib * MIB for buffer, _, mib in self._log.buffers if _device_of(buffer) not in ours),
        ]
        return [*cards, host]

    def _padded_shares(self) -> tuple[float, ...]:
        return (*self._shares, *(0.0,) * (len(self._devices) - len(self._shares)))

    def _compute(self, device: str) -> float:
        """Bytes of the compute buffers that the log names for a device."""
        return sum(mib * MIB for buffer, kind, mib in self._log.buffers
                   if kind == "compute" and _device_of(buffer) == device)  # fmt: skip


class Simulator:
    """Answers one draft after the other, keeping the last model for the next context."""

    def __init__(self, log: native.LibraryLog) -> None:
        self._library_log = log
        self._log: LoadLog | None = None
        self._stand_ins = StandIns()
        self._last: tuple[bytes, Simulation] | None = None

    def answer(self, command: Simulate) -> Simulated:
        """Work a draft out. Raises LoadFailed with llama.cpp's reason where it cannot load."""
        simulation, context = self._simulation(command.load), command.load.context
        by_header = command.by_header
        found = simulation.memory(context, by_header=by_header)
        if command.room_mib is None:
            return found
        eight_bits = msgspec.structs.replace(context, type_k="q8_0", type_v="q8_0")
        try:
            q8_cards = simulation.memory(eight_bits, by_header=by_header).cards
        except LoadFailed:
            q8_cards = None
        most = max(simulation.info.n_ctx_train, found.n_ctx)

        def fits(n_ctx: int) -> bool:
            at = msgspec.structs.replace(context, n_ctx=n_ctx)
            memory = simulation.memory(at, by_header=by_header)
            return _fits((*memory.cards, memory.host), command.room_mib or ())

        max_n_ctx = _largest(fits, most)
        return msgspec.structs.replace(found, max_n_ctx=max_n_ctx, q8_cards=q8_cards)

    def _simulation(self, load: Load) -> Simulation:
        key = msgspec.json.encode(msgspec.structs.replace(load, context=Context()))
        if self._last is not None:
            if self._last[0] == key:
                return self._last[1]
            self._last[1].close()
            self._last = None
        if self._log is None:
            self._log = LoadLog()
            self._library_log.listen(self._log.read)
        simulation = Simulation(load, self._log, self._stand_ins)
        self._last = key, simulation
        return simulation


def _devices(load: Load, stand_ins: StandIns) -> list[int]:
    devices: list[int] = []
    stood_in = 0
    for card in load.cards:
        if card.device is None:
            devices.append(stand_ins.device(stood_in))
            stood_in += 1
            continue
        device = native.device_named(card.device)
        if device is None:
            names = ", ".join(native.device_name(device) for device in native.devices())
            raise LoadFailed(f"there is no card {card.device} here; there are: {names}", key="split.cards")
        devices.append(device)
    return devices


def _device_of(buffer: str) -> str:
    """The device of a buffer name: `RPC0[127.0.0.1:50052]` is of RPC0."""
    return buffer.partition("[")[0]


def _drawn_out(near: CardMemory, far: CardMemory, beyond: float) -> CardMemory:
    """What a card takes `beyond` times the step from `near` to `far` past `far`."""
    return msgspec.structs.replace(
        far,
        kv_mib=far.kv_mib + (far.kv_mib - near.kv_mib) * beyond,
        compute_mib=far.compute_mib + (far.compute_mib - near.compute_mib) * beyond,
    )


def _fits(memory: Iterable[CardMemory], room_mib: Sequence[float | None]) -> bool:
    return all(room is None or held.total_mib <= room for held, room in zip(memory, room_mib, strict=True))


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest n_ctx up to `most`, in whole steps, that fits; 0 if none does."""
    if fits(most):
        return most
    low, high = 0, -(-most // N_CTX_STEP)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle * N_CTX_STEP):
            low = middle
        else:
            high = middle
    return low * N_CTX_STEP
