"""The examples that come with workbench are sound and say what they show in one line."""

from pathlib import Path

import pytest

from workbench.domain.split import Virtual, layer_counts
from workbench.store.documents import check_document, read_layout, read_prompt_set
from workbench.store.models import DEMO
from workbench.store.writing import save_layout

ROOT = Path(__file__).parents[2]
LAYOUTS = sorted((ROOT / "layouts").glob("*.yaml"))
PROMPTS = sorted((ROOT / "prompts").glob("*.yaml"))


@pytest.mark.parametrize("path", LAYOUTS + PROMPTS, ids=lambda path: path.stem)
def test_each_is_sound_and_has_one_line_of_comment(path: Path) -> None:
    assert check_document(path) == []
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    assert len(comments) == 1


@pytest.mark.parametrize("path", LAYOUTS, ids=lambda path: path.stem)
def test_each_layout_is_named_as_its_file_and_survives_saving(path: Path, tmp_path: Path) -> None:
    layout = read_layout(path)
    assert layout.name == path.stem
    assert read_layout(save_layout(layout, tmp_path / "a.yaml")) == layout
    written = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert (tmp_path / "a.yaml").read_text().splitlines() == written


@pytest.mark.parametrize("path", PROMPTS, ids=lambda path: path.stem)
def test_each_prompt_set_is_named_as_its_file_and_greedy(path: Path) -> None:
    prompts = read_prompt_set(path)
    assert prompts.name == path.stem
    assert prompts.defaults.temperature == 0
    assert prompts.defaults.max_tokens > 0


def test_the_demo_layouts_need_no_gpu() -> None:
    demos = [read_layout(path) for path in LAYOUTS if path.stem.startswith("demo-")]
    assert {demo.name for demo in demos} >= {"demo-even", "demo-3-1", "demo-tensor", "demo-single", "demo-unequal"}
    for demo in demos:
        assert demo.model == DEMO
        assert isinstance(demo.split.cards, Virtual)
        assert len(demo.split.cards.virtual) == 2


@pytest.mark.parametrize(("name", "counts"), [
    ("demo-even", (16, 15)), ("demo-3-1", (23, 8)), ("demo-single", (31, 0)), ("demo-unequal", (25, 6)),
])
def test_the_demo_layouts_ask_for_these_layers(name: str, counts: tuple[int, int]) -> None:
    assert layer_counts(read_layout(ROOT / "layouts" / f"{name}.yaml").split, 30, 2) == counts


def test_the_prompt_set_for_a_first_look_has_five_short_prompts() -> None:
    prompts = read_prompt_set(ROOT / "prompts" / "quick.yaml").prompts
    assert len(prompts) == 5
    assert all(prompt.text is not None and len(prompt.text) < 80 for prompt in prompts)
