"""Sessions, replays and A/Bs over servers: the contract's, and llama-cpp-python's own beside our worker."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil
import pytest

from tests.engines.serving import PATIENT, layout, opened
from tests.lab import sessions
from tests.lab.experiments import SHORT, begin
from tests.lab.sessions import Told, done
from tests.servers.running import Contract
from workbench.domain.card import Card, CardKind
from workbench.domain.layout import Context, EngineName, Layout
from workbench.domain.prompts import Prompt, PromptSet
from workbench.domain.samples import Sample, plan_ab
from workbench.domain.split import Split, Virtual
from workbench.engines.engine import LoadFailed
from workbench.lab import events
from workbench.lab.cards import watched
from workbench.lab.progress import LoadBegan, LoadEnded, RunEvent, SampleTaken
from workbench.meters.board import WatchedGpu
from workbench.store.runs import RunError, read_run


def served(engine: EngineName, server: Contract, **more: object) -> Layout:
    return layout(engine, server.url, PATIENT, **more)


def test_a_session_on_ollama(ollama: Contract) -> None:
    told = Told()
    try:
        told.load(served("ollama", ollama))
        turn = done(told.session.send("Name a river."))
        assert turn.reply.startswith("Rivers run to the sea.")
        assert turn.split == "ollama"
        assert told.wait_for(events.ProbeDone).measurement.probe is not None
        # Another number of layers on cards: Ollama loads anew, the conversation goes on.
        done(told.session.resplit(Split(n_gpu_layers=20)))
        told.idle()
        assert told.session.history[-1].label == "ollama, 20 on cards"
        assert ollama.state["loaded"]["tiny:latest"]["options"]["num_gpu"] == 20
        done(told.session.send("And another?"))
        sent = ollama.asked("/api/chat")
        assert [message["role"] for message in sent[-1]["messages"]] == ["user", "assistant", "user"]
        assert any("evaluated again: a server keeps the state" in notice.message for notice in told.of(events.Notice))
        # A larger context is a load too.
        assert done(told.session.set_context(Context(n_ctx=2048))).n_ctx == 2048
        done(told.session.park())
        assert ollama.state["loaded"] == {}
        done(told.session.unpark())
        assert ollama.state["loaded"]
    finally:
        told.close()
    assert ollama.state["loaded"] == {}


@pytest.mark.parametrize("engine", ["ollama", "openai"])
@pytest.mark.parametrize("trouble", ["drops", "error line", "no end", "no JSON"])
def test_a_reply_that_breaks_off_is_kept_and_said_once(
    engine: EngineName, trouble: str, request: pytest.FixtureRequest
) -> None:
    server: Contract = request.getfixturevalue(engine)
    told = Told()
    try:
        told.load(served(engine, server))
        server.behave(trouble=trouble)
        turn = done(told.session.send("Name a river."))
        assert turn.stop_reason == "died"
        assert turn.reply.startswith("Rivers run")
        (problem,) = told.of(events.Problem)
        assert problem.serving is None  # nobody knows whether the server lives
        server.behave(trouble="")
        assert done(told.session.send("Go on.", sessions.GREEDY)).reply.startswith("Rivers run to the sea.")
        assert len(told.of(events.LayoutLoaded)) == 1  # nothing was loaded again
    finally:
        told.close()


def test_a_refused_prompt_is_given_back(openai: Contract) -> None:
    told = Told()
    try:
        told.load(served("openai", openai))
        openai.behave(trouble="503")
        with pytest.raises(Exception, match="busy"):
            done(told.session.send("Name a river."))
        assert told.of(events.PromptReturned)[-1].prompt == "Name a river."
        assert told.session.conversation.turns == ()
        openai.behave(trouble="")
        assert done(told.session.send("Name a river.")).reply
    finally:
        told.close()


def test_a_layout_that_does_not_load_leaves_what_serves(ollama: Contract, openai: Contract) -> None:
    told = Told()
    try:
        told.load(served("ollama", ollama))
        with pytest.raises(LoadFailed, match="has no model tony"):
            done(told.session.load(served("openai", openai, model="tony")))
        assert told.of(events.Problem)[-1].serving == "ollama"
        assert done(told.session.send("Name a river.")).reply
        assert told.session.layout == served("ollama", ollama)
    finally:
        told.close()


def test_from_a_server_to_our_worker_and_back(ollama: Contract, tiny: Path) -> None:
    """One at a time: the server's memory is free before the worker loads."""
    told = Told()
    try:
        told.load(served("ollama", ollama))
        told.load(sessions.layout(tiny, tensor_split=(1.0, 1.0)))
        assert ollama.state["loaded"] == {}
        assert told.of(events.LayoutLoaded)[-1].strategy == "in turn"
        done(told.session.send("Say something."))
        done(told.session.go_back())
        assert ollama.state["loaded"]
    finally:
        told.close()


def test_the_meters_look_for_a_servers_processes_on_every_gpu(ollama: Contract) -> None:
    told = Told()
    try:
        loaded = told.load(served("ollama", ollama))
        assert loaded.served is not None
        cards = tuple(
            Card(name=f"CUDA{at}", kind=CardKind.CUDA, pci_bus_id=f"0000:c{at}:00.0") for at in range(2)
        )
        cpu = Card(name="CPU", kind=CardKind.CPU)
        assert watched((*cards, cpu), loaded) == tuple(
            WatchedGpu(name=card.name, pci_bus_id=card.pci_bus_id or "", pids=loaded.served.pids) for card in cards
        )
        pid = ollama.state["loaded"]["tiny:latest"]["pid"]
        assert pid in loaded.served.pids  # the runner is what holds the memory
    finally:
        told.close()


# ── measuring ─────────────────────────────────────────────────────────────────────────────
def test_an_ab_across_engines(tiny: Path, ollama: Contract) -> None:
    from tests.lab.experiments import layout as ours

    ollama.behave(talks=False, reply=["The", " Nile", "."])
    for model in ("tiny", "other:7b"):  # an earlier use left them in memory
        opened("ollama", ollama, model=model).load(lambda progress: None)
    earlier = ollama.state["loaded"]["tiny:latest"]["pid"]
    seen: list[bool] = []

    def listen(event: RunEvent) -> None:
        if isinstance(event, LoadBegan) and not seen:
            seen.append("tiny:latest" in ollama.state["loaded"] or psutil.pid_exists(earlier))

    experiment = begin([ours(tiny), served("ollama", ollama, context=Context(n_ctx=512))], blocks=1, listener=listen)
    experiment.start()
    outcome = experiment.wait()
    assert [arm.failure for arm in outcome.arms] == [None, None]
    assert [arm.loads for arm in outcome.arms] == [2, 2]
    assert seen == [False]  # A's first load found the memory free
    assert list(ollama.state["loaded"]) == ["other:7b"]  # which is not the run's to unload
    assert any("B: Ollama holds other:7b too" in caution for caution in outcome.cautions)
    run = read_run(experiment.folder)
    b = run.header.arm("B").resolved
    assert b is not None
    assert (b.server, b.model.header_sha256) == ("Ollama 0.33.0", "sha-of-tiny:latest")
    assert {sample.timing.source for sample in run.of("B") if sample.timing} == {"server"}
    assert {sample.planned.salt for sample in run.of("A")} == {sample.planned.salt for sample in run.of("B")}
    assert any("nobody checked" in caution for caution in outcome.cautions)
    assert any("cannot be told to go on" in caution for caution in outcome.cautions)
    # Each load is loaded anew, each prompt has a number before it.
    prompts = [body["messages"][0]["content"] for body in ollama.asked("/api/chat") if body["messages"]]
    assert len(set(prompts)) >= len(prompts) - 2  # the warm-ups alone are alike between loads
    assert all(prompt.startswith("No. ") for prompt in prompts)


def test_an_ab_of_our_worker_against_the_same_model_behind_a_real_server(llama_cpp: str) -> None:
    """The bundled model, on the host's cores in both arms."""
    ours = sessions.layout(n_ctx=1024, cards=Virtual(("600MiB",)))
    theirs = msgspec.structs.replace(layout("openai", llama_cpp), name="theirs")
    one = PromptSet(name="one", prompts=(Prompt(id="tides", text="Why two tides?", max_tokens=12),))
    experiment = begin([ours, theirs], one, blocks=1)
    experiment.start()
    outcome = experiment.wait()
    a, b = outcome.arms
    assert (a.failure, b.failure) == (None, None)
    assert a.samples == b.samples == 2
    assert b.decode_tok_s is not None
    assert b.prefill_tok_s is None  # this server does not count its prompts
    effect = outcome.effect("decode")
    assert effect is not None
    assert effect.ratio is not None
    assert any("B's speeds are by workbench's own clock" in caution for caution in outcome.cautions)
    assert any("B's server keeps its model in memory" in caution for caution in outcome.cautions)


def test_two_arms_on_one_server_share_no_salt(ollama: Contract) -> None:
    layouts = [served("ollama", ollama, name="all"), served("ollama", ollama, name="some", split=Split(n_gpu_layers=9))]
    experiment = begin(layouts, blocks=2)
    experiment.start()
    outcome = experiment.wait()
    run = read_run(experiment.folder)
    salts = [sample.planned.salt for sample in run.samples]
    assert len(set(salts)) == len(salts) == 2 * 4 * len(SHORT.prompts)
    assert outcome.partings == ()
    assert any("both arms are on one server" in caution for caution in outcome.cautions)
    with pytest.raises(RunError, match="on one server"):
        begin(layouts, method="resident")


def test_salts_of_one_server_differ_by_slot() -> None:
    shared = plan_ab(SHORT, 2, "fresh", 0)
    apart = plan_ab(SHORT, 2, "fresh", 0, one_server=True)
    assert len({planned.salt for planned in shared}) == len(shared) / 2
    assert len({planned.salt for planned in apart}) == len(apart)


def test_a_reply_that_cannot_be_timed_is_left_out(openai: Contract) -> None:
    openai.behave(flavour="vllm", trouble="buffered")
    samples = _replay([served("openai", openai)])
    assert all("all at once" in str(sample.left_out) for sample in samples)


def test_a_server_that_drops_replies_loses_samples_and_no_load(openai: Contract) -> None:
    experiment = begin([served("openai", openai)], blocks=1, listener=_Breaks(openai))
    experiment.start()
    experiment.wait()
    run = read_run(experiment.folder)
    assert ["broke off" in (sample.left_out or "") for sample in run.samples] == [True, False]
    assert [load.error for load in run.loads] == [None]


class _Breaks:
    """Has the server break off the first measured reply of a run, and no other."""

    def __init__(self, server: Contract) -> None:
        self._server = server

    def __call__(self, event: RunEvent) -> None:
        if isinstance(event, LoadEnded):
            self._server.behave(trouble="error line")
        elif isinstance(event, SampleTaken):
            self._server.behave(trouble="")


def _replay(layouts: Sequence[Layout]) -> tuple[Sample, ...]:
    experiment = begin(layouts, blocks=1)
    experiment.start()
    experiment.wait()
    return read_run(experiment.folder).samples
