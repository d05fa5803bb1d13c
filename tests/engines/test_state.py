"""A conversation's state: saved, taken over by another split, refused where it cannot be."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engines.conftest import Open, Opened, layout, opened, with_context
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import EngineError, Reply, SavedState, StateRefused

ASKED = ("Tell me about rivers.", "And about lakes?")
SPLITS: dict[str, Split] = {
    "another layer split": Split(layers=(8, 23), cards=Virtual(("600MiB", "600MiB"))),
    "one card": Split(split_mode="none", cards=Virtual(("600MiB",))),
    "the CPU": Split(cards=("CPU",)),
}


class Before:
    """A conversation on one engine: its state after the first reply, and how it went on there."""

    def __init__(self, it: Opened, path: Path) -> None:
        self.first: Reply = it.ask(ASKED[0], max_tokens=24, temperature=1.0, seed=4)
        self.state = it.engine.save_state(path)
        self.second: Reply = it.ask(ASKED[0], self.first.text, ASKED[1], max_tokens=32)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Before]:
    folder = tmp_path_factory.mktemp("before")
    with opened(layout(layers=(16, 15)), folder / "engine.log") as it:
        yield Before(it, folder / "state")


def restored(it: Opened, before: Before) -> Reply:
    it.engine.restore_state(before.state)
    return it.ask(ASKED[0], before.first.text, ASKED[1], max_tokens=32)


def first_difference(a: str, b: str) -> int | None:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


@pytest.mark.parametrize("name", SPLITS)
def test_another_split_takes_it_over_byte_for_byte_and_goes_on_alike(
    name: str, before: Before, open_engine: Open, tmp_path: Path
) -> None:
    split = SPLITS[name]
    of = msgspec.structs.replace(layout(), split=split)
    with open_engine(of) as it:
        it.engine.restore_state(before.state)
        again = it.engine.save_state(tmp_path / "again")
        assert Path(again.path).read_bytes() == Path(before.state.path).read_bytes()
        assert (again.tokens, again.text, again.marks) == (
            before.state.tokens, before.state.text, before.state.marks)  # fmt: skip
        reply = it.ask(ASKED[0], before.first.text, ASKED[1], max_tokens=32)
        assert reply.timing.evaluated_tokens == before.second.timing.evaluated_tokens
        if split.layers is not None:
            assert reply.text == before.second.text
        else:
            assert reply.text.split()[0] == before.second.text.split()[0]


def test_tensor_mode_takes_it_over_and_gives_it_back(
    before: Before, open_engine: Open, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    of = layout(split_mode="tensor", tensor_split=(1, 1))
    with open_engine(of) as it:
        reply = restored(it, before)
        assert reply.timing.evaluated_tokens == before.second.timing.evaluated_tokens
        # Its arithmetic differs, so the texts may part; where they do is told, not judged.
        record_property("first_difference", first_difference(reply.text, before.second.text))
        assert reply.text.split()[0] == before.second.text.split()[0]
        it.engine.restore_state(before.state)
        again = it.engine.save_state(tmp_path / "again")
        assert Path(again.path).read_bytes() == Path(before.state.path).read_bytes()


def test_a_later_turn_is_asked_anew_after_the_state_was_taken_over(before: Before, open_engine: Open) -> None:
    with open_engine(layout(layers=(4, 27))) as it:
        it.engine.restore_state(before.state)
        assert it.ask(ASKED[0], max_tokens=1).timing.evaluated_tokens == 1


def test_a_quantised_cache_carries_over_to_its_like(open_engine: Open, tmp_path: Path) -> None:
    q8 = with_context(layout(layers=(16, 15)), type_k="q8_0", type_v="q8_0", flash_attn=True)
    with open_engine(q8) as it:
        assert it.loaded.cards[0].kv_mib == pytest.approx(16 * 1024 * 2 * 192 * 34 / 32 / 2**20, rel=0.01)
        q8_before = Before(it, tmp_path / "state")
    with open_engine(msgspec.structs.replace(q8, split=SPLITS["another layer split"])) as it:
        assert restored(it, q8_before).text == q8_before.second.text


REFUSING: dict[str, dict[str, Any]] = {
    "another type of cache": {"type_k": "q8_0", "type_v": "q8_0"},
    "other flash attention": {"flash_attn": False},
}


@pytest.mark.parametrize("why", REFUSING)
def test_a_context_that_cannot_hold_it_refuses_and_serves_on(why: str, before: Before, open_engine: Open) -> None:
    of = with_context(layout(layers=(16, 15)), **REFUSING[why])
    with open_engine(of) as it:
        with pytest.raises(StateRefused) as caught:
            it.engine.restore_state(before.state)
        assert "cannot hold its state" in caught.value.reason
        reply = it.ask(ASKED[0], before.first.text, ASKED[1], max_tokens=8)
        assert reply.timing.evaluated_tokens == reply.timing.prompt_tokens


def test_too_small_a_context_refuses_and_serves_on(tiny: Path, open_engine: Open, tmp_path: Path) -> None:
    of = layout(tiny, n_ctx=1024, layers=(4, 4))
    with open_engine(of) as it:
        it.ask("x" * 400, max_tokens=2)
        state = it.engine.save_state(tmp_path / "state")
        it.engine.new_context(with_context(of, n_ctx=256).context)
        with pytest.raises(StateRefused):
            it.engine.restore_state(state)
        assert it.ask("hello", max_tokens=2, ignore_eos=True).timing.tokens == 2


@pytest.mark.parametrize("damage", ["cut", "gone", "other bytes", "folder"])
def test_a_damaged_file_is_refused_and_the_engine_lives(
    damage: str, before: Before, demo: Opened, tmp_path: Path
) -> None:
    data = Path(before.state.path).read_bytes()
    path = tmp_path / "state"
    if damage == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "other bytes":
        path.write_bytes(b"\x00" * len(data))
    elif damage == "folder":
        path.mkdir()
    with pytest.raises(StateRefused):
        demo.engine.restore_state(msgspec.structs.replace(before.state, path=str(path)))
    assert demo.ask("Name a river.", max_tokens=4).timing.tokens == 4


def test_a_state_that_cannot_be_written_is_an_error_and_the_engine_lives(demo: Opened, tmp_path: Path) -> None:
    demo.ask("Name a river.", max_tokens=4)
    with pytest.raises(EngineError, match="cannot be kept: No such file"):
        demo.engine.save_state(tmp_path / "nowhere" / "state")
    with pytest.raises(EngineError, match="cannot be kept"):
        demo.engine.save_state(Path("/dev/full"))
    assert demo.ask("Name a river.", max_tokens=4).timing.evaluated_tokens == 1


def test_the_state_is_for_this_user_alone(before: Before) -> None:
    assert Path(before.state.path).stat().st_mode & 0o077 == 0


def test_an_empty_conversation_can_be_carried_too(open_engine: Open, tiny: Path, tmp_path: Path) -> None:
    with open_engine(layout(tiny, n_ctx=256, layers=(4, 4))) as it:
        empty = it.engine.save_state(tmp_path / "state")
        assert isinstance(empty, SavedState)
        it.engine.restore_state(empty)
        assert it.ask("hello", max_tokens=2, ignore_eos=True).timing.tokens == 2


def test_another_context_on_the_same_weights(open_engine: Open, tmp_path: Path) -> None:
    of = layout(layers=(16, 15), n_ctx=512)
    with open_engine(of) as it:
        carried = Before(it, tmp_path / "state")
        larger = it.engine.new_context(with_context(of, n_ctx=2048).context)
        assert larger.n_ctx == 2048
        assert larger.cards[0].kv_mib == pytest.approx(4 * it.loaded.cards[0].kv_mib)
        assert larger.cards[0].weights_mib == it.loaded.cards[0].weights_mib
        assert larger.load_s < it.loaded.load_s
        assert larger.pid == it.loaded.pid
        assert restored(it, carried).text == carried.second.text
