"""From the key to a quiet card: a cancel in a prefill of 16k tokens, and in decode.

The key calls the session's cancel. The stamp is the session's word that the reply is over, which
follows the worker's own: its decode has returned by then. Whether the card is quiet is told in
the detail too, in turn by the first token of a prompt that is sent at once, and by NVML's own
samples of use, which are a sixth of a second apart. A key that came too late for a prefill, on
cards that are done with it sooner, counts for nothing.
"""

import statistics
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from tests.benchmarks.gpu.room import Figure, Room
from tests.benchmarks.gpu.served import LIMIT_S, Heard, ask, gpus, nvml, session_on, settle
from tests.benchmarks.resplit import SENTENCE
from tests.waiting import wait_until
from workbench.domain.conversation import Sampling
from workbench.domain.layout import Layout
from workbench.domain.split import SplitMode
from workbench.lab import events
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.meters.nvml import Nvml

PART = "cancel"
PREFILL, N_CTX = 16384, 17408
REHEARSED = 3072
"""So long is the prompt on virtual cards, which take minutes for more."""
DELAYS_S = (0.1, 0.2, 0.3, 0.45, 0.6, 0.75)
"""How long what is cancelled has run; a prefill of 16k tokens of an 8b takes 1.5 s on an H200, 0.9 s on two."""
ENOUGH = 3
"""So many of them are to fall into what is cancelled."""
LIMITS_S = {("8b", "prefill"): 0.3, ("8b", "decode"): 0.3, ("70b", "prefill"): 0.6, ("70b", "decode"): 0.3}
SAMPLES_BACK_S = 3.0
SAMPLES_AFTER_S = 0.6
"""NVML's samples of use are there a little later."""
MODES: tuple[SplitMode, ...] = ("layer", "tensor")


def measure(room: Room) -> Iterator[Figure]:
    """Each model in both modes, cancelled in prefill and in decode."""
    delays = DELAYS_S[:2] if room.quick else DELAYS_S
    for model in ("8b", "70b"):
        if model not in room.models:
            continue
        for mode in MODES[:1] if room.quick else MODES:
            layout = room.layout(model, room.split(mode), n_ctx=N_CTX)
            kit = RealKit(spare=False)
            bus_ids = [card.pci_bus_id or "" for card in gpus(room, kit)]
            with nvml() as driver, session_on(layout, kit) as (session, heard):
                prompt = _prompt(session, REHEARSED if room.virtual else PREFILL)
                for what in ("prefill", "decode"):
                    rows = [
                        _cancelled(session, heard, what, prompt, delay)
                        | (_next_prompt(session) if number % 2 == 0 else _last_use(driver, bus_ids))
                        for number, delay in enumerate(delays)
                    ]
                    yield _figure(rows, layout, model, what)


def _figure(rows: list[dict[str, Any]], layout: Layout, model: str, what: str) -> Figure:
    timely = [row for row in rows if row["in_time"]]
    took = [row["seconds"] for row in timely if row["came_to"] == "cancelled"]
    about: dict[str, Any] = {
        "part": PART,
        "what": f"from key to the end of the worker's {what}, the longest",
        "case": f"{model} {layout.split.label()}",
        "unit": "s",
        "detail": {"median": round(statistics.median(took), 3) if took else None, "rows": rows},
    }
    if len(took) < max(len(timely), min(ENOUGH, len(rows))):
        note = f"{len(rows)} keys, {len(timely)} of them in time, and {len(took)} stopped it"
        return Figure(holds=False, note=note, **about)
    return Figure.at_most(max(took), LIMITS_S[model, what], note=f"{len(took)} keys", **about)


def _prompt(session: Session, tokens: int) -> str:
    """A prompt of about so many tokens, by how many this model makes of a text."""
    turn = ask(session, SENTENCE * 4, 1)
    assert turn.timing is not None
    each = turn.timing.prompt_tokens / 4
    session.clear().result(LIMIT_S)
    return SENTENCE * int((tokens - 64) / each)


def _cancelled(session: Session, heard: Heard, what: str, prompt: str, delay_s: float) -> dict[str, Any]:
    since = len(heard.events)
    session.clear().result(LIMIT_S)
    # No two begin alike, so that nothing of one is left for the next.
    text = f"{delay_s}: {prompt}" if what == "prefill" else f"{delay_s}: Tell of a river."
    reply = session.send(text, Sampling(temperature=0, max_tokens=0 if what == "prefill" else 8192, ignore_eos=True))
    begins: type[events.SessionEvent] = events.TurnStarted if what == "prefill" else events.TurnText
    wait_until(lambda: heard.of(begins, since))
    time.sleep(delay_s)
    in_time = not reply.done() and bool(heard.of(events.TurnText, since)) == (what == "decode")
    begun = time.monotonic()
    session.cancel()
    turn = settle(reply)
    return {
        "delay_s": delay_s,
        "in_time": in_time,
        "came_to": turn and turn.stop_reason,
        "seconds": round(time.monotonic() - begun, 4),
    }


def _next_prompt(session: Session) -> dict[str, Any]:
    """How long after the end the first token of a short prompt came: the card had nothing else to do."""
    begun = time.monotonic()
    ask(session, "Name a lake.", 1)
    return {"next_token_s": round(time.monotonic() - begun, 3)}


def _last_use(driver: Nvml, bus_ids: list[str]) -> dict[str, Any]:
    """When NVML's last sample with any use was, in seconds after now; None where it keeps no samples."""
    now_us, binding = time.time_ns() // 1000, driver.binding
    since_us = int(now_us - SAMPLES_BACK_S * 1e6)
    time.sleep(SAMPLES_AFTER_S if bus_ids else 0)
    last: list[float | None] = []
    for bus_id in bus_ids:
        found = driver.ask(bus_id, "use", partial(_samples, binding, since_us))
        busy = [sample.timeStamp for sample in (found or (0, ()))[1] if sample.sampleValue.uiVal > 0]
        last.append(round((max(busy) - now_us) / 1e6, 3) if busy else None)
    return {"last_use_s": last}


def _samples(binding: Any, since_us: int, card: Any) -> Any:
    return binding.nvmlDeviceGetSamples(card, binding.NVML_GPU_UTILIZATION_SAMPLES, since_us)
