"""Who worked during a reply, and what it took."""

import msgspec
import pytest

from workbench.domain.duty import CardDuty, Duty, Price, Reading, account
from workbench.domain.memory import CardMemory
from workbench.domain.split import SplitMode


def memory(*weights: float) -> list[CardMemory]:
    return [CardMemory(name=f"CUDA{i}", weights_mib=mib, kv_mib=1, compute_mib=1) for i, mib in enumerate(weights)]


def busy(*values: float | None) -> list[Reading]:
    """Readings at 1, 2, 3 … seconds."""
    return [Reading(at=float(at), busy=value) for at, value in enumerate(values, 1)]


def duty_of(
    mode: SplitMode,
    cards: list[CardMemory],
    readings: list[list[Reading]],
    *,
    known: bool = True,
    host: float | None = None,
) -> Duty:
    return account(mode, cards, readings, 0.0, 4.0, 100, busy_is_known=[known] * len(cards), host_busy=host)


def test_each_cards_share_of_the_work_against_its_weights() -> None:
    duty = duty_of("layer", memory(61, 20), [busy(0.7, 0.8), busy(0.2, 0.3)])
    assert [card.busy for card in duty.cards] == pytest.approx([0.75, 0.25])
    assert [card.share for card in duty.cards] == pytest.approx([0.75, 0.25])
    assert [card.ideal for card in duty.cards] == pytest.approx([61 / 81, 20 / 81])
    assert duty.idle == pytest.approx(0)


def test_the_time_in_which_no_card_was_busy() -> None:
    assert duty_of("layer", memory(1, 1), [busy(0.3), busy(0.2)]).idle == pytest.approx(0.5)
    assert duty_of("tensor", memory(1, 2), [busy(0.9), busy(0.7)]).idle == pytest.approx(0.1)
    assert duty_of("layer", memory(1, 1), [busy(0.8), busy(0.8)]).idle == 0


def test_virtual_cards_have_shares_but_no_time_of_their_own() -> None:
    duty = duty_of("layer", memory(3, 1), [busy(0.3, 0.3), busy(0.1, 0.1)], known=False)
    assert [card.share for card in duty.cards] == [pytest.approx(0.75), pytest.approx(0.25)]
    assert [card.busy for card in duty.cards] == [None, None]
    assert duty.idle is None


def test_a_card_that_tells_nothing_leaves_the_shares_unknown() -> None:
    duty = duty_of("layer", memory(1, 1), [busy(0.5), busy(None)])
    assert [card.share for card in duty.cards] == [None, None]
    assert duty.cards[0].busy == 0.5
    assert duty.idle is None
    assert duty.joules is None


def test_how_much_of_the_time_the_cpu_takes_for_layers_of_its_own() -> None:
    assert duty_of("layer", memory(1, 1), [busy(0.1), busy(0.1)], host=0.5).host == pytest.approx(0.8)
    assert duty_of("layer", memory(1, 1), [busy(0.1), busy(0.1)], known=False, host=0.6).host == pytest.approx(0.75)
    assert duty_of("layer", memory(1, 1), [busy(0.1), busy(0.1)]).host is None


def energy(*pairs: tuple[float, float | None]) -> list[Reading]:
    return [Reading(at=at, energy_at=at, energy_j=joules) for at, joules in pairs]


def joules(*pairs: tuple[float, float | None], ended: float = 4.0) -> float | None:
    (card,) = account("none", memory(1), [energy(*pairs)], 1.0, ended, 100, busy_is_known=[True]).cards
    return card.joules


def test_the_speed_of_cards_is_told_by_those_that_take_turns_and_by_all_of_them() -> None:
    slow, fast = CardDuty(name="CUDA0", share=0.75, ideal=0.5), CardDuty(name="CUDA1", share=0.25, ideal=0.5)
    duty = Duty(mode="layer", cards=(slow, fast), tokens=8, seconds=1.0)
    assert duty.speeds["CUDA1"] / duty.speeds["CUDA0"] == pytest.approx(3)
    assert msgspec.structs.replace(duty, mode="tensor").speeds == {}
    assert msgspec.structs.replace(duty, cards=(slow, CardDuty(name="CUDA1"))).speeds == {}
    assert msgspec.structs.replace(duty, cards=(slow,)).speeds == {}


def test_the_energy_of_a_reply_is_the_counter_at_its_end_less_that_at_its_beginning() -> None:
    assert joules((1.0, 500), (4.0, 1400)) == pytest.approx(900)
    assert joules((0.0, 400), (2.0, 600), (6.0, 1400)) == pytest.approx(1000 - 500)


def test_energy_that_cannot_be_told_is_none() -> None:
    assert joules((2.0, 500), (4.0, 1400)) is None
    assert joules((0.0, 500), (3.0, 1400)) is None
    assert joules((0.0, None), (4.0, None)) is None
    assert joules() is None


def test_a_counter_that_begins_anew_tells_nothing() -> None:
    assert joules((0.0, 500), (2.0, 700), (5.0, 20)) is None
    assert joules((0.0, 500_000), (2.0, 500_100), (2.5, 10), (5.0, 400)) is None


def test_a_short_reply_is_approximate_and_joules_are_per_token() -> None:
    duty = account("none", memory(1), [energy((0.0, 0), (1.0, 400))], 0.0, 1.0, 100, busy_is_known=[True])
    assert duty.approximate
    assert duty.per_token(duty.joules) == pytest.approx(4)
    assert duty.per_token(None) is None


def test_tokens_for_a_unit_of_money() -> None:
    cards = (CardDuty(name="CUDA0", joules=3600.0),)
    duty = Duty(mode="none", cards=cards, tokens=1000, seconds=36.0)
    assert Price(per_hour=2.0).tokens_per_unit(duty) == pytest.approx(1000 / 0.02)
    assert Price(per_kwh=0.5).tokens_per_unit(duty) == pytest.approx(1000 / 0.0005)
    assert Price(per_hour=2.0, per_kwh=0.5).tokens_per_unit(duty) == pytest.approx(1000 / 0.0205)
    unknown = Duty(mode="none", cards=(CardDuty(name="CUDA0"),), tokens=1000, seconds=36.0)
    assert Price(per_kwh=0.5).tokens_per_unit(unknown) is None
    assert Price(per_hour=2.0).tokens_per_unit(unknown) == pytest.approx(50_000)
