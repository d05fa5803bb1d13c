"""What a run came to: arms, outputs, cautions, and the words for them."""

import msgspec

from tests.runs import loads_of, made_run
from workbench.domain import wording
from workbench.domain.comparison import speed
from workbench.domain.layout import Layout
from workbench.domain.machines import join
from workbench.domain.memory import CardMemory
from workbench.domain.outcome import Parting, outcome
from workbench.domain.run import Build, Resolved, Run
from workbench.domain.run import ModelFile as Model
from workbench.domain.samples import CardState, Conditions, Planned

HOST = CardMemory(name="CPU", weights_mib=0, kv_mib=0, compute_mib=1)


def faster_b(planned: Planned) -> float:
    return (60.0 if planned.arm == "B" else 50.0) * (1 + 0.001 * planned.slot + 0.001 * planned.block)


def resolved(sha: str, *, flash_attn: bool = True) -> Resolved:
    return Resolved(
        n_ctx=512,
        flash_attn=flash_attn,
        template="own",
        model=Model(path=f"{sha}.gguf", size_bytes=7, header_sha256=sha),
        cards=(),
        host=HOST,
        model_name="m",
        arch="llama",
        quantisation="Q4_1",
        n_layer=30,
        n_params=1,
    )


def test_arms_have_rates_loads_and_peaks() -> None:
    run = made_run(faster_b)
    memory = CardMemory(name="CUDA0", weights_mib=100, kv_mib=20, compute_mib=5)
    loads = tuple(msgspec.structs.replace(load, cards=(memory,)) for load in run.loads)
    used = Conditions(
        cards=(CardState(name="CUDA0", ours_mib=140, energy_j=18.0), CardState(name="CUDA1", energy_j=4.0))
    )
    samples = tuple(msgspec.structs.replace(sample, conditions=used) for sample in run.samples)
    a, b = outcome(msgspec.structs.replace(run, loads=loads, samples=samples)).arms
    assert (a.loads, a.samples, a.load_s, a.failure) == (4, 8, 2.0, None)
    assert a.decode_tok_s is not None
    assert b.decode_tok_s is not None
    assert b.decode_tok_s > a.decode_tok_s
    assert a.joules_per_token == 2.0
    assert [(peak.name, peak.mib) for peak in a.peaks] == [("CUDA0", 140)]


def test_joules_are_of_all_cards_or_unknown_and_marked_where_replies_are_short() -> None:
    def joules(seconds: float, *each: float | None) -> str:
        run = made_run(lambda planned: 12 / seconds)
        used = Conditions(cards=tuple(CardState(name=f"CUDA{at}", energy_j=one) for at, one in enumerate(each)))
        samples = tuple(msgspec.structs.replace(sample, conditions=used) for sample in run.samples)
        rows = wording.arm_rows(outcome(msgspec.structs.replace(run, samples=samples)))
        return next((row[1] for row in rows if row[0] == "J/token"), "no row")

    assert joules(3.0, 11.0, 22.0) == "3.00"
    assert joules(1.5, 11.0, 22.0) == "≈3.00"
    assert joules(3.0, 11.0, None) == joules(3.0) == "no row"


def test_the_first_token_at_which_outputs_part() -> None:
    run = made_run(faster_b, texts={"A": "abcd", "B": "abXd"})
    same, other = run.samples, made_run(faster_b).samples
    assert outcome(made_run(faster_b)).partings[0].differ == 0
    (rivers, tides) = outcome(run).partings
    assert (rivers.prompt, rivers.compared, rivers.differ, rivers.first) == ("rivers", 4, 4, 2)
    tokens = tuple(
        msgspec.structs.replace(sample, tokens=(1, 2, 3) if sample.planned.arm == "A" else (1, 2, 3, 4))
        for sample in other
    )
    assert outcome(msgspec.structs.replace(run, samples=tokens)).partings[0].first == 3
    assert len(same) == len(other)
    assert "parting" not in wording.outputs((tides,))


def test_one_pair_is_no_plural() -> None:
    same = Parting(prompt="rivers", compared=1, differ=0, first=None)
    assert wording.outputs((same,)) == "outputs: the one pair is the same, token by token"
    other = msgspec.structs.replace(same, differ=1, first=4)
    assert wording.outputs((other,)) == "outputs: 1 of 1 pair differs: rivers from token 5"
    assert wording.outputs((same, other)) == "outputs: 1 of 2 pairs differs: rivers from token 5"


def test_what_a_server_said_is_compared_by_character_and_as_far_as_it_goes() -> None:
    run = made_run(faster_b, texts={"A": "The Nile. And more", "B": "The Nile."})
    assert outcome(run).partings[0].first == 9
    assert "rivers from character 10" in wording.outputs(outcome(run).partings)
    ended = tuple(
        msgspec.structs.replace(sample, stop_reason="stop" if sample.planned.arm == "B" else "max_tokens")
        for sample in run.samples
    )
    partings = outcome(msgspec.structs.replace(run, samples=ended)).partings
    assert (partings[0].differ, partings[0].unit) == (0, "character")
    assert "the same, as far as both texts go" in wording.outputs(partings)


def test_an_arm_that_does_not_load_is_said_and_the_other_is_measured() -> None:
    run = made_run(faster_b)
    failed = msgspec.structs.replace(run.loads[1], error="no room", load_s=None)
    alone = Run(header=run.header, samples=run.of("A"), loads=(*loads_of(run.header)[:1], failed))
    said = outcome(alone)
    assert said.arms[1].failure == "no room"
    assert said.arms[0].samples == 8
    assert said.cautions == ("B (B) did not load: no room",)
    assert all(effect.verdict == "too few blocks" for effect in said.effects)
    assert wording.headline(said).endswith(": B did not load")


def test_different_models_and_settings_are_said() -> None:
    run = made_run(faster_b)
    header = run.header.resolved("A", resolved("aa")).resolved("B", resolved("bb", flash_attn=False))
    said = outcome(msgspec.structs.replace(run, header=header))
    assert wording.headline(said).endswith(" (the arms have different models)")
    assert said.cautions == (
        "the arms have different models: aa.gguf and bb.gguf",
        "flash attention is on in A alone",
    )


def test_samples_left_out_are_counted_by_rule() -> None:
    run = made_run(faster_b)
    first = msgspec.structs.replace(run.samples[0], left_out="CUDA0 was throttled: hardware thermal")
    said = outcome(msgspec.structs.replace(run, samples=(first, *run.samples[1:])))
    assert said.arms[0].left_out == {"CUDA0 was throttled: hardware thermal": 1}
    assert said.arms[0].samples == 7
    assert said.cautions == ("1 of A's samples left out: CUDA0 was throttled: hardware thermal",)


def test_resident_is_marked_indicative() -> None:
    cautions = outcome(made_run(faster_b, method="resident")).cautions
    assert any("indicative" in caution for caution in cautions)
    assert any("no fresh loads" in caution for caution in cautions)


def test_words() -> None:
    said = outcome(made_run(faster_b, blocks=3))
    assert wording.title(said) == "B (layer auto) is 20.0 % faster than A (layer auto) in decode"
    assert wording.headline(said).startswith(f"{wording.title(said)}, 1.200 × its speed (95 % interval 1.200–1.200)")
    assert wording.conclusion(said, "ttft") == "B is 20.0 % faster than A to the first token"
    rows = wording.effect_rows(said)
    assert [row[0] for row in rows] == ["", "prefill", "decode", "first token"]
    assert {len(row) for row in rows} == {7}
    one = outcome(made_run(faster_b, blocks=1))
    assert "too few blocks" in wording.headline(one)


def test_two_machines_are_joined_by_layout_and_prompt() -> None:
    first, second = made_run(faster_b), made_run(lambda planned: faster_b(planned) * 2)
    joined = join(first, second)
    assert joined.cautions == ()
    assert joined.prompts == ("rivers", "tides")
    assert [(row.layout, row.metric) for row in joined.rows[:3]] == [("A", "prefill"), ("A", "decode"), ("A", "ttft")]
    row = joined.rows[1]
    assert row.low is not None
    assert row.high is not None
    assert row.low < 2.0 < row.high
    assert abs(row.ratio - 2.0) < 1e-9
    assert row.loads == (4, 4)
    # The speeds are those that the report of each run gives.
    assert (row.first, row.second) == (speed(first.of("A"), "decode"), speed(second.of("A"), "decode"))


def test_what_makes_two_machines_hard_to_compare_is_said() -> None:
    first = made_run(faster_b)
    header = msgspec.structs.replace(
        first.header,
        build=Build(versions={"llama-cpp-python": "0.4"}),
        arms=(msgspec.structs.replace(first.header.arms[0], layout=Layout(name="C", model="m")),),
        prompts=msgspec.structs.replace(first.header.prompts, prompts=first.header.prompts.prompts[:1]),
    )
    joined = join(first, msgspec.structs.replace(first, header=header))
    assert joined.rows == ()
    assert joined.cautions == (
        "only these prompts are the same in both: rivers",
        "the runs have no layout of the same name",
        "llama-cpp-python: none and 0.4",
    )
