"""The sentence that reads the meters says the most important thing."""

import msgspec
import pytest

from workbench.domain.duty import CardDuty, Duty
from workbench.domain.reading import CardScene, Scene, read
from workbench.domain.split import SplitMode


def duty(mode: SplitMode, *cards: tuple[float, float, float], idle: float | None = 0.02) -> Duty:
    """Cards as (busy, share, ideal)."""
    found = tuple(
        CardDuty(name=f"CUDA{i}", busy=busy, share=share, ideal=ideal) for i, (busy, share, ideal) in enumerate(cards)
    )
    return Duty(mode=mode, cards=found, tokens=100, seconds=3.0, idle=idle)


TWO = (CardScene(name="CUDA0"), CardScene(name="CUDA1"))
EVEN = duty("layer", (0.5, 0.5, 0.5), (0.48, 0.5, 0.5))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (EVEN, "layer mode: cards take turns, about half idle each is expected"),
        (
            duty("layer", (0.7, 0.74, 0.75), (0.25, 0.26, 0.25)),
            "layer mode: cards take turns, so idle by design: CUDA0 25 %, CUDA1 75 %",
        ),
        (
            duty("layer", (0.7, 0.7, 0.5), (0.3, 0.3, 0.5)),
            "CUDA0 does 70 % of the work with 50 % of the weights: more than its share",
        ),
        (
            duty("layer", (0.25, 0.5, 0.5), (0.25, 0.5, 0.5), idle=0.5),
            "no card was busy for 50 % of the last reply: the host or the links are the limit",
        ),
        (
            duty("tensor", (0.9, 0.6, 0.5), (0.6, 0.4, 0.5)),
            "tensor mode: CUDA1 is busy 60 %, CUDA0 90 %: CUDA1 could hold more",
        ),
        (
            duty("tensor", (0.9, 0.5, 0.5), (0.88, 0.5, 0.5)),
            "tensor mode: all cards work at once, and talk after every layer",
        ),
        (duty("none", (0.97, 1.0, 1.0), (0.0, 0.0, 0.0)), "CUDA0 does all the work"),
    ],
)
def test_how_the_cards_shared_the_work(given: Duty, said: str) -> None:
    assert read(Scene(cards=TWO, duty=given)) == said


def test_trouble_goes_before_everything() -> None:
    hot = CardScene(name="CUDA1", throttle=("power cap", "hardware thermal"), sm_clock_mhz=1200)
    lost = CardScene(name="CUDA0", lost=True)
    broken = CardScene(name="CUDA0", uncorrected_errors=2)
    layers = (0, 11)
    assert read(Scene(cards=(lost, hot), duty=EVEN, host_layers=layers)) == (
        "CUDA0 no longer answers, and a part of the model was there"
    )
    assert read(Scene(cards=(TWO[0], hot), duty=EVEN, host_layers=layers)) == (
        "CUDA1 is held down to 1200 MHz (hardware thermal); a split is as slow as its slowest card"
    )
    assert read(Scene(cards=(broken,), duty=EVEN)) == "CUDA0 had 2 memory errors that it could not correct"


def test_a_power_cap_is_no_trouble() -> None:
    capped = CardScene(name="CUDA0", throttle=("power cap",))
    assert read(Scene(cards=(capped, TWO[1]), duty=EVEN)).startswith("layer mode")


def test_layers_on_the_cpu_and_what_they_cost() -> None:
    slow = msgspec.structs.replace(EVEN, host=0.78)
    assert read(Scene(cards=TWO, duty=slow, host_layers=(0, 11))) == (
        "layers 0–11 are on the CPU: about 78 % of the time goes there"
    )
    assert read(Scene(cards=TWO, host_layers=(3, 3))) == (
        "layer 3 is on the CPU, which is many times slower than a card"
    )


def test_a_busy_card_while_nothing_runs_here() -> None:
    scene = Scene(cards=(CardScene(name="CUDA0", steadily=97),), duty=EVEN)
    assert read(scene) == "CUDA0 is busy although nothing runs here: something else uses it"
    assert "something else" not in read(msgspec.structs.replace(scene, working=True))


def test_a_single_card_that_is_bound_by_its_memory() -> None:
    scene = Scene(cards=(CardScene(name="CUDA0", dram_percent=84),), duty=duty("none", (0.97, 1, 1)), working=True)
    assert read(scene) == "CUDA0 does all the work and is bound by its memory's bandwidth (84 %)"


def test_before_the_first_reply_there_is_nothing_to_read() -> None:
    assert read(Scene(cards=TWO)) == ""
