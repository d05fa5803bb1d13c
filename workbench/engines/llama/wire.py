"""The messages between the client and the worker: JSON lines, one message a line.

Commands go down the worker's stdin, events come back on a pipe of their own (file descriptor
in `EVENT_FD_VARIABLE`). The worker's fds 1 and 2 are its log.
"""

from typing import Literal

import msgspec

from workbench.domain.conversation import Message, Sampling, StopReason
from workbench.domain.decoding import decoded
from workbench.domain.forecast import ForecastSource
from workbench.domain.layout import Context
from workbench.domain.memory import CardMemory
from workbench.domain.split import Split
from workbench.domain.timing import Probe, Timing
from workbench.engines.engine import CardProcess, Filler, Loaded, ModelInfo, SavedState

EVENT_FD_VARIABLE = "WORKBENCH_EVENT_FD"


class WireCard(msgspec.Struct, frozen=True, kw_only=True):
    """A card to use: a device of the worker (`device`), a size to make one of, or an endpoint.

    `free_mib` is what the client knows to be free there, for `tensor_split: auto`.
    """

    name: str
    device: str | None = None
    virtual_mib: float | None = None
    endpoint: str | None = None
    free_mib: float | None = None


# ── commands ──────────────────────────────────────────────────────────────────────────────
class Load(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Load `model_path` over `cards`. `card_threads` is the thread count of each virtual card."""

    model_path: str
    cards: tuple[WireCard, ...]
    split: Split
    context: Context
    card_threads: int


class Chat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Answer `messages`, or measure with made-up tokens."""

    messages: tuple[Message, ...]
    sampling: Sampling
    filler: Filler | None = None


class RunProbe(msgspec.Struct, frozen=True, tag=True):
    """Run the probe."""


class SaveState(msgspec.Struct, frozen=True, tag=True):
    """Write the conversation's state to `path`."""

    path: str


class RestoreState(msgspec.Struct, frozen=True, tag=True):
    """Take over a state."""

    state: SavedState


class ExpectState(msgspec.Struct, frozen=True, tag=True):
    """A state of up to `size` bytes will be saved to `path`, or restored from it; 0: none will after all.

    Read by the worker's reader thread, out of turn; nothing answers it.
    """

    path: str
    size: int


class NewContext(msgspec.Struct, frozen=True, tag=True):
    """Keep the model, make another context."""

    context: Context


class Cancel(msgspec.Struct, frozen=True, tag=True):
    """Stop command number `call` of this worker, counted from 1; a late one stops no other.

    Read by the worker's reader thread, out of turn.
    """

    call: int


class ListDevices(msgspec.Struct, frozen=True, tag=True):
    """Name the devices that llama.cpp sees. Queries them, which takes memory on each GPU."""


class Describe(msgspec.Struct, frozen=True, tag=True):
    """Tell how llama.cpp was built. Queries no device."""


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """Read the header of a model."""

    path: str


class Simulate(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Work out what `load` would take, on stand-ins for its virtual and remote cards.

    With `room_mib`, what each card (and last the host) could give, the answer also has limits.
    `by_header` asks the second source.
    """

    load: Load
    room_mib: tuple[float | None, ...] | None = None
    by_header: bool = False


Command = (
    Load
    | Chat
    | RunProbe
    | SaveState
    | RestoreState
    | ExpectState
    | NewContext
    | Cancel
    | ListDevices
    | Describe
    | Inspect
    | Simulate
)


# ── events ────────────────────────────────────────────────────────────────────────────────
class Ready(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker is up and llama.cpp is imported; no device was queried. `build` is its own word on its build."""

    pid: int
    supports_rpc: bool
    supports_gpu_offload: bool
    build: str = ""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """The load goes on."""

    fraction: float
    stage: str


class CardStarted(msgspec.Struct, frozen=True, tag=True):
    """A virtual card's process runs."""

    card: CardProcess


class LoadDone(msgspec.Struct, frozen=True, tag=True):
    """Loaded, or given a new context."""

    loaded: Loaded


class Text(msgspec.Struct, frozen=True, tag=True):
    """More of the reply; several tokens may be in one event."""

    text: str


class ChatDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reply is over. The whole text was sent as `Text` before."""

    stop_reason: StopReason
    timing: Timing
    tokens: tuple[int, ...] = ()


class ProbeDone(msgspec.Struct, frozen=True, tag=True):
    """The probe's figures; None if it was cancelled."""

    probe: Probe | None


class StateSaved(msgspec.Struct, frozen=True, tag=True):
    """The state is written."""

    state: SavedState


class StateRestored(msgspec.Struct, frozen=True, tag=True):
    """The state is taken over."""


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """A device as llama.cpp describes it; sizes in MiB. `type` is gpu, igpu, cpu or accel."""

    name: str
    description: str
    type: Literal["gpu", "igpu", "cpu", "accel"]
    device_id: str | None
    total_mib: float
    free_mib: float


class Devices(msgspec.Struct, frozen=True, tag=True):
    """The answer to ListDevices; `backends` are those of the build, with devices or without."""

    devices: tuple[Device, ...]
    backends: tuple[str, ...] = ()


class Described(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """llama.cpp as it was built; a version is None where the library does not tell it.

    `backends` are its own names (`CUDA`, `RPC`, `CPU`), `libraries` the file names of the GPU makers'
    that were loaded with it (`libcudart.so.13`).
    """

    llama_version: str | None
    ggml_version: str | None
    commit: str | None
    backends: tuple[str, ...]
    libraries: tuple[str, ...]


class Inspected(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One header, or why it could not be read."""

    path: str
    model: ModelInfo | None = None
    error: str | None = None


class Simulated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the load would take. `n_ctx` is rounded up as llama.cpp does.

    With limits: `max_n_ctx`, the largest that fits the room, 0 if none does, and the memory
    with a q8_0 cache, None where the model refuses it.
    """

    source: ForecastSource
    cards: tuple[CardMemory, ...]
    host: CardMemory
    n_ctx: int
    max_n_ctx: int | None = None
    q8_cards: tuple[CardMemory, ...] | None = None


ErrorKind = Literal["load_failed", "cancelled", "prompt_too_long", "state_refused", "error", "died"]


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The command failed. After load_failed and died the worker ends."""

    kind: ErrorKind
    reason: str
    card: str | None = None
    wanted_mib: float | None = None
    free_mib: float | None = None
    key: str | None = None
    prompt_tokens: int = 0
    n_ctx: int = 0


Event = (
    Ready
    | Progress
    | CardStarted
    | LoadDone
    | Text
    | ChatDone
    | ProbeDone
    | StateSaved
    | StateRestored
    | Devices
    | Described
    | Inspected
    | Simulated
    | Failed
)

_encoder = msgspec.json.Encoder()
_commands: msgspec.json.Decoder[Command] = msgspec.json.Decoder(Command)
_events: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(message: Command | Event) -> bytes:
    """One JSON message and a newline."""
    return _encoder.encode(message) + b"\n"


def decode_command(line: bytes) -> Command:
    """The command in a line; msgspec.DecodeError if it is none."""
    return decoded(_commands, line)


def decode_event(line: bytes) -> Event:
    """The event in a line; msgspec.DecodeError if it is none."""
    return decoded(_events, line)
