"""The screen over servers: what of a split they can be asked, the rest greyed with the reason; their models."""

from pathlib import Path

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from tests.app.stage import ask, running, until
from tests.engines.serving import layout
from tests.servers.running import Contract
from workbench.app.app import WorkbenchApp
from workbench.app.opening import Start, open_outside
from workbench.app.outside import Outside
from workbench.app.screens.context import ContextScreen
from workbench.app.screens.models import ModelsScreen
from workbench.domain.layout import Layout
from workbench.lab.kit import RealKit
from workbench.lab.session import Session
from workbench.store.journal import Journal
from workbench.store.writing import save_layout


def app_on(first: Layout, outside: Outside | None = None) -> WorkbenchApp:
    kit = RealKit(spare=False)
    return WorkbenchApp(lambda listener: Session(kit, listener), outside or Outside(), first=first)


def shown(app: WorkbenchApp, part: str) -> str:
    return str(app.main.query_one(part, Static).render())


async def loaded(pilot: Pilot[None], app: WorkbenchApp) -> None:
    await until(pilot, lambda: app.session.loaded is not None and app.main.split.layout_now is not None)


async def test_layers_on_cards_are_ollamas_to_change_and_which_card_is_not(ollama: Contract) -> None:
    app = app_on(layout("ollama", ollama.url))
    async with running(app) as pilot:
        assert "tiny Q4_0 · ollama · ctx 4096" in app.main.header.left
        assert app.main.header.right == "Ollama 0.33.0"
        await ask(pilot, app, "Name a river.")
        pane = app.main.split
        assert "tensor✗ row✗" in shown(app, "#split-mode").replace("  ", " ")
        assert "31/31" in shown(app, "#split-layers")
        assert "server 120 MiB, all on cards" in shown(app, "#card-rows")
        assert "LLAMA_ARG_TENSOR_SPLIT=3,1 ollama serve" in shown(app, "#forecast")
        await pilot.press("f6")
        await pilot.press("left", "left")
        assert pane.asked is not None
        assert pane.asked.n_gpu_layers == 29
        await pilot.press("enter")
        await until(pilot, lambda: app.session.layout is not None and app.session.layout.split.n_gpu_layers == 29)
        await until(pilot, lambda: ollama.state["loaded"]["tiny:latest"]["options"].get("num_gpu") == 29)
        await until(pilot, lambda: "29/31" in shown(app, "#split-layers") and app.session.history[-1].probe)
        assert "server 120 MiB, 112 of it on cards" in shown(app, "#card-rows")
        # Tensor mode is greyed, with the one line of environment that would do it.
        await pilot.press("m")
        assert "LLAMA_ARG_SPLIT_MODE=tensor ollama serve" in shown(app, "#forecast")
        await pilot.press("enter")
        await until(pilot, lambda: any("takes no mode" in said.message for said in app.said))
        await pilot.press("m")
        assert "LLAMA_ARG_SPLIT_MODE=row ollama serve" in shown(app, "#forecast")
        # In mode none a digit pins to that card.
        await pilot.press("m", "1")
        assert pane.asked is not None
        assert (pane.asked.split_mode, pane.asked.main_gpu, pane.asked.n_gpu_layers) == ("none", 1, 29)
        await pilot.press("enter")
        await until(pilot, lambda: "'main_gpu': 1" in str(ollama.state["loaded"]))
        await until(pilot, lambda: app.session.layout is not None and app.session.layout.split.main_gpu == 1)


async def test_context_settings_of_ollama(ollama: Contract) -> None:
    app = app_on(layout("ollama", ollama.url))
    async with running(app) as pilot:
        app.action_context()
        await until(pilot, lambda: isinstance(app.screen, ContextScreen))
        await pilot.press("down", "right")
        foretold = app.screen.query_one("#foretold", Static)
        await until(pilot, lambda: "ollama serve`" in str(foretold.render()))
        await pilot.press("left", "up", "right", "enter")
        await until(pilot, lambda: app.session.loaded is not None and app.session.loaded.n_ctx == 8192)
        assert ollama.state["loaded"]["tiny:latest"]["options"]["num_ctx"] == 8192


async def test_a_server_that_is_asked_nothing_says_so(openai: Contract) -> None:
    app = app_on(layout("openai", openai.url))
    async with running(app, loaded=False) as pilot:
        await loaded(pilot, app)
        await until(pilot, lambda: "split where it is started" in shown(app, "#split-mode"))
        assert shown(app, "#split-rows") == ""
        assert "server tells nothing of its memory" in shown(app, "#card-rows")
        await pilot.press("f6")
        for key in ("left", "m", "enter"):
            app.said.clear()
            await pilot.press(key)
            await until(pilot, lambda: any("workbench export LAYOUT --as llama-server" in s.message for s in app.said))
        await ask(pilot, app, "Name a river.")
        assert app.session.conversation.turns[-1].reply


@pytest.mark.parametrize("trouble", ["drops", "error line", "503"])
async def test_trouble_leaves_a_usable_screen(openai: Contract, trouble: str) -> None:
    app = app_on(layout("openai", openai.url))
    async with running(app, loaded=False) as pilot:
        await loaded(pilot, app)
        await until(pilot, lambda: app.session.history and app.session.history[-1].probe)
        openai.behave(trouble=trouble)
        app.main.chat.prompt.fill("Name a river.", None)
        await pilot.press("enter")
        await until(pilot, lambda: any(said.problem for said in app.said) and not app.main.chat.answering)
        assert len([said for said in app.said if said.problem]) == 1
        openai.behave(trouble="")
        await ask(pilot, app, "Go on.")
        assert app.session.conversation.turns[-1].reply.startswith("Rivers run to the sea.")


async def test_the_key_is_in_no_picture_and_no_file(
    openai: Contract, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "sk-very-secret-0123456789"
    monkeypatch.setenv("MY_KEY", secret)
    (own_home / "config").mkdir()
    (own_home / "config" / "config.yaml").write_text(f"api_keys: {{MY_KEY: [{openai.url}]}}\n")
    openai.behave(key=secret)
    kit = RealKit(spare=False)
    first = layout("openai", openai.url, api_key_env="MY_KEY")
    journal = Journal.create(own_home / "journals")
    app = WorkbenchApp(lambda listener: Session(kit, listener, journal=journal), Outside(), first=first)
    async with running(app, loaded=False) as pilot:
        await loaded(pilot, app)
        await ask(pilot, app, "Name a river.")
        openai.behave(key="another")  # what it says then repeats what it was sent
        app.main.chat.prompt.fill("Go on.", None)
        await pilot.press("enter")
        await until(pilot, lambda: any("no such key: Bearer …" in said.message for said in app.said))
        pictures = [app.export_screenshot()]
        await pilot.press("f8")
        pictures.append(app.export_screenshot())
        assert secret not in f"{pictures}{app.said}"
    kit.close()
    files = [path for path in own_home.rglob("*") if path.is_file()]
    assert any(path.parent.name == "journals" for path in files)
    assert not [path for path in files if secret.encode() in path.read_bytes()]


async def test_a_servers_models_are_in_the_picker(
    ollama: Contract, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    there = layout("ollama", ollama.url)
    save_layout(there, tmp_path / "layouts" / "there.yaml")
    gone = msgspec.structs.replace(there, name="gone", url="http://127.0.0.1:9")
    save_layout(gone, tmp_path / "layouts" / "gone.yaml")
    kit = RealKit(spare=False)
    real = open_outside(Start(folders=[tmp_path]), kit.forecasts)
    app = app_on(there, Outside(find_models=real.find_models))
    async with running(app) as pilot:
        await pilot.press("f4")
        await until(pilot, lambda: isinstance(app.screen, ModelsScreen))
        options = app.screen.query_one(OptionList)
        await until(pilot, lambda: options.option_count == 3)
        lines = [str(options.get_option_at_index(at).prompt) for at in range(3)]
        assert "nothing answers" in lines[0]
        assert "tiny:latest" in lines[1]
        assert "120 MiB" in lines[1]
        await pilot.press("down", "down")
        await until(pilot, lambda: ollama.url in str(app.screen.query_one("#about", Static).render()))
        await pilot.press("enter")
        await until(pilot, lambda: app.session.layout is not None and app.session.layout.model == "other:7b")
        assert app.session.layout == Layout(
            name="other:7b", engine="ollama", model="other:7b", url=ollama.url, timeouts=there.timeouts
        )
    kit.close()
