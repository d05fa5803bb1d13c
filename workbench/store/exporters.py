"""Runs out: a report in Markdown, samples as CSV or JSON lines, and llama-bench's fields."""

import csv
import io
import statistics
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any

import msgspec

from workbench.domain import wording
from workbench.domain.card import format_mib
from workbench.domain.comparison import Metric, amount
from workbench.domain.outcome import Outcome
from workbench.domain.run import ArmHeader, Run, RunHeader
from workbench.domain.samples import Sample
from workbench.domain.split import Split, Virtual
from workbench.domain.text import flat

FORMATS = ("md", "csv", "jsonl", "llama-bench")


def export(run: Run, outcome: Outcome, form: str) -> str:
    """A run in one of FORMATS."""
    match form:
        case "md":
            return markdown(outcome)
        case "csv":
            return as_csv(run)
        case "jsonl":
            return as_jsonl(run)
        case _:
            return llama_bench(run)


# ── a report ──────────────────────────────────────────────────────────────────────────────
def markdown(outcome: Outcome) -> str:
    """A report that reads well where Markdown is shown."""
    header = outcome.header
    parts = [f"### {_escape(wording.title(outcome))}"]
    basis = wording.basis(outcome)
    if basis:
        ratios = f"Ratios are of speeds: above 1 B is faster, to the first token too. {wording.PAIRED}"
        parts.append(f"{_escape(basis)}. {ratios}")
    parts.append(_md_table(wording.effect_rows(outcome)))
    if lengths := wording.length_rows(outcome):
        parts.append(_md_table(lengths))
    parts.append("\n".join(f"- {_escape(note)}" for note in wording.notes(outcome)))
    parts.append(_md_table(wording.arm_rows(outcome)))
    parts.append(
        "<details><summary>How it was measured</summary>\n\n"
        + "\n".join(f"- {_escape(line)}" for line in how_measured(header, outcome.taken))
        + "\n\n</details>"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def how_measured(header: RunHeader, taken: int) -> list[str]:
    """Everything that shapes the figures, a line a thing."""
    machine, prompts = header.machine, header.prompts.prompts
    blocks = f"{header.blocks} {'block' if header.kind == 'ab' else 'load'}{'' if header.blocks == 1 else 's'}"
    if header.method == "resident":
        blocks += ", both arms loaded at once"
    elif header.kind == "ab":
        blocks += " of four loads"
    sampled = " but where a prompt sets its temperature" if any(each.temperature for each in prompts) else ""
    ended = " unless a prompt lets them end" if any(each.ignore_eos is False for each in prompts) else ""
    made = datetime.fromtimestamp(header.created, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    lines = [
        f"run {header.id}, {made}",
        f"{blocks}, {header.warm_ups} warm-ups a load discarded; {taken} of {len(header.plan)} samples taken",
        f"prompt set {header.prompts.name}, {len(prompts)} prompt{'' if len(prompts) == 1 else 's'}, "
        f"greedy{sampled}, replies of fixed length{ended}, each prompt unique",
        ", ".join(
            filter(
                None,
                (
                    f"machine {machine.host}",
                    machine.cpu,
                    f"{machine.cores} core{'' if machine.cores == 1 else 's'}",
                    format_mib(machine.memory_mib),
                    machine.system,
                ),
            )
        ),
    ]
    for card in machine.cards:
        limit = "" if card.power_limit_w is None else f", power limit {card.power_limit_w:.0f} W"
        driver = "" if machine.driver is None else f", driver {machine.driver}"
        lines.append(" ".join(filter(None, ("card", card.name, card.pci_bus_id, card.uuid))) + limit + driver)
    if header.build.versions:
        lines.append(", ".join(f"{package} {version}" for package, version in header.build.versions.items()))
    build = header.build
    if build.llama_cpp or build.backends:
        backends = f", built with {', '.join(build.backends)}" if build.backends else ""
        lines.append(f"llama.cpp {build.llama_cpp or 'of unknown version'}{backends}")
    if header.build.system_info:
        lines.append(header.build.system_info)
    for arm in header.arms:
        lines += _arm_lines(arm)
    return lines


def _arm_lines(arm: ArmHeader) -> Iterator[str]:
    context = arm.layout.context
    yield (
        f"{arm.arm}: {arm.label}, model {arm.layout.model}, n_ctx {context.n_ctx}, n_batch {context.n_batch}, "
        f"n_ubatch {context.n_ubatch}, KV {context.type_k}/{context.type_v}"
    )
    if arm.resolved is not None:
        on = {True: "on", False: "off", None: "unknown"}[arm.resolved.flash_attn]
        model = arm.resolved.model
        named = ", ".join(filter(None, (arm.resolved.model_name, arm.resolved.arch, arm.resolved.quantisation)))
        what = (
            f"model {named or 'without a name'}, file {PurePath(model.path).name} of {model.size_bytes} bytes, "
            f"whose header has SHA-256 {model.header_sha256[:16]}…"
        )
        if arm.resolved.server:
            what = f"{arm.resolved.server}, {model.path} {model.header_sha256[:16]}".rstrip()
        yield f"{arm.arm}, once loaded: n_ctx {arm.resolved.n_ctx or 'unknown'}, flash attention {on}, {what}"
    cards = arm.layout.split.cards
    if isinstance(cards, Virtual):
        yield f"{arm.arm}, cards: virtual, of {', '.join(cards.virtual)}: llama.cpp RPC servers on the CPU, no GPUs"
    if arm.env:
        yield f"{arm.arm}, environment: " + ", ".join(f"{name}={value}" for name, value in arm.env.items())


def _md_table(rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(_escape(cell) for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def _escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>|#" else char for char in flat(text))


# ── samples ───────────────────────────────────────────────────────────────────────────────
def as_jsonl(run: Run) -> str:
    """One line a sample, with every parameter that shapes it."""
    lines = (msgspec.json.encode(_row(run.header, sample)).decode() for sample in run.samples)
    return "".join(f"{line}\n" for line in lines)


def as_csv(run: Run) -> str:
    """The same with a head row; what is nested is JSON in its cell, text that a sheet would run is quoted."""
    out = io.StringIO()
    rows = [_row(run.header, sample) for sample in run.samples]
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(rows[0] if rows else ["run"])
    writer.writerows([_cell(value) for value in row.values()] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return msgspec.json.encode(value).decode()
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value


def _row(header: RunHeader, sample: Sample) -> dict[str, Any]:
    arm, planned, timing = header.arm(sample.planned.arm), sample.planned, sample.timing
    split, context, resolved = arm.layout.split, arm.layout.context, arm.resolved
    return {
        "run": header.id,
        "host": header.machine.host,
        "kind": header.kind,
        "method": header.method,
        "arm": planned.arm,
        "layout": arm.layout.name,
        "block": planned.block,
        "slot": planned.slot,
        "load": sample.load,
        "at": sample.at,
        "prompt": planned.prompt,
        "repeat": planned.repeat,
        "salt": planned.salt,
        "left_out": sample.left_out,
        "prompt_tokens": timing and timing.prompt_tokens,
        "evaluated_tokens": timing and timing.evaluated_tokens,
        "tokens": timing and timing.tokens,
        "decoded_tokens": timing and timing.decoded_tokens,
        "ttft_s": timing and timing.ttft_s,
        "prefill_s": timing and timing.prefill_s,
        "decode_s": timing and timing.decode_s,
        "prefill_tok_s": timing and timing.prefill_tok_s,
        "decode_tok_s": timing and timing.decode_tok_s,
        "stop_reason": sample.stop_reason,
        "text_sha256": sample.text_sha256,
        "model": arm.layout.model,
        "model_sha256": resolved and resolved.model.header_sha256,
        "split_mode": split.split_mode,
        "tensor_split": _shares(split),
        "main_gpu": split.main_gpu,
        "n_gpu_layers": split.n_gpu_layers,
        "cards": _card_names(arm),
        "n_ctx": resolved.n_ctx if resolved else context.n_ctx,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "n_threads": context.n_threads,
        "type_k": context.type_k,
        "type_v": context.type_v,
        "flash_attn": resolved.flash_attn if resolved else context.flash_attn,
        "env": arm.env,
        "load_average": sample.conditions.load_average,
        "card_states": msgspec.to_builtins(sample.conditions.cards),
    }


def _shares(split: Split) -> str:
    if split.layers is not None:
        return "/".join(str(count) for count in split.layers)
    return split.tensor_split if isinstance(split.tensor_split, str) else "/".join(f"{s:g}" for s in split.tensor_split)


def _card_names(arm: ArmHeader) -> str:
    if arm.resolved is not None:
        return "/".join(card.name for card in arm.resolved.cards)
    cards = arm.layout.split.cards
    if isinstance(cards, Virtual):
        return "/".join(f"RPC{number}" for number in range(len(cards.virtual)))
    return "/".join(cards or ())


# ── llama-bench's fields ──────────────────────────────────────────────────────────────────
def llama_bench(run: Run) -> str:
    """A JSON array of tests, two a prompt and arm, prefill and generation, under llama-bench's field names.

    Fields that a run does not know are left out. A test's repetitions are the samples, over all loads.
    """
    tests = []
    for arm in run.header.arms:
        for prompt in run.header.prompts.prompts:
            samples = [
                sample
                for sample in run.of(arm.arm)
                if sample.planned.prompt == prompt.id and sample.left_out is None and sample.timing is not None
            ]
            for metric in ("prefill", "decode"):
                test = _bench_test(run.header, arm, samples, metric, prompt.depth)
                if test is not None:
                    tests.append(test)
    return msgspec.json.format(msgspec.json.encode(tests), indent=2).decode() + "\n"


def _bench_test(
    header: RunHeader, arm: ArmHeader, samples: list[Sample], metric: Metric, depth: int
) -> dict[str, Any] | None:
    amounts = [found for s in samples if s.timing is not None and (found := amount(s.timing, metric)) is not None]
    first = next((s.timing for s in samples if s.timing is not None), None)
    if not amounts or first is None:
        return None
    context, split, resolved = arm.layout.context, arm.layout.split, arm.resolved
    nanoseconds = [round(seconds * 1e9) for _, seconds in amounts]
    rates = [counted / seconds for counted, seconds in amounts]
    generation = metric == "decode"
    test: dict[str, Any] = {
        "cpu_info": header.machine.cpu,
        "gpu_info": ", ".join(card.name or card.pci_bus_id for card in header.machine.cards),
        "model_filename": resolved.model.path if resolved else arm.layout.model,
        "model_type": f"{resolved.arch} {resolved.quantisation}" if resolved else "",
        "model_size": resolved.model.size_bytes if resolved else 0,
        "model_n_params": resolved.n_params if resolved else 0,
        "n_batch": context.n_batch,
        "n_ubatch": context.n_ubatch,
        "type_k": context.type_k,
        "type_v": context.type_v,
        "n_gpu_layers": split.n_gpu_layers if split.n_gpu_layers != "all" else -1,
        "split_mode": split.split_mode,
        "main_gpu": split.main_gpu,
        "flash_attn": -1 if resolved is None or resolved.flash_attn is None else int(resolved.flash_attn),
        "devices": _card_names(arm),
        "tensor_split": _shares(split),
        "n_prompt": 0 if generation else first.evaluated_tokens,
        "n_gen": first.decoded_tokens if generation else 0,
        "n_depth": first.prompt_tokens if generation else depth,
        "test_time": datetime.fromtimestamp(samples[0].at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.fmean(nanoseconds)),
        "stddev_ns": round(statistics.stdev(nanoseconds)) if len(nanoseconds) > 1 else 0,
        "avg_ts": statistics.fmean(rates),
        "stddev_ts": statistics.stdev(rates) if len(rates) > 1 else 0.0,
        "samples_ns": nanoseconds,
        "samples_ts": rates,
    }
    if context.n_threads != "auto":
        test["n_threads"] = context.n_threads
    return test
