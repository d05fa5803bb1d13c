"""`workbench doctor`."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click
import msgspec

from workbench.app.abilities import ascii_only, encoding, slow
from workbench.cli.failures import Code
from workbench.cli.text import UNKNOWN, json_text, table
from workbench.domain.card import format_mib
from workbench.domain.report import Facts, Finding, Mask, Problem, Report
from workbench.lab.doctor import broken_document, look_at_machine, mask
from workbench.lab.doctor_engine import look_at_engine
from workbench.store.documents import DocumentError
from workbench.store.places import HomeError

SMALLEST = (60, 20)


def print_doctor(*, as_json: bool) -> None:
    """Print what was found; exits with 1 where something is broken."""
    with _waiting("asking engine and driver …"):
        engine = look_at_engine()
    report = Report(findings=(*engine, *look_at_machine(), look_at_terminal(os.environ), look_at_keys()))
    hide = mask()
    click.echo(report_json(report, hide) if as_json else report_text(report, hide))
    if report.broken:
        sys.exit(Code.FAILED)


@contextlib.contextmanager
def _waiting(what: str) -> Iterator[None]:
    """Say to a terminal what goes on; a driver may take its time."""
    if not sys.stderr.isatty():
        yield
        return
    click.echo(what, err=True, nl=False)
    try:
        yield
    finally:
        click.echo(f"\r{' ' * len(what)}\r", err=True, nl=False)


# ── the terminal ──────────────────────────────────────────────────────────────────────────
def look_at_terminal(env: Mapping[str, str]) -> Finding:
    """What the screen would have to do with."""
    is_one = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    size = shutil.get_terminal_size((0, 0)) if is_one else None
    tmux = "TMUX" in env
    clipboard = _tmux_clipboard() if tmux else None
    facts: Facts = {
        "terminal": is_one,
        "TERM": env.get("TERM"),
        "colours": _colours(env),
        "encoding": encoding(env),
        "drawn_with": "ASCII" if ascii_only(env) else "Unicode",
        "size": None if size is None else f"{size.columns}x{size.lines}",
        "ssh": "SSH_CONNECTION" in env or "SSH_TTY" in env,
        "slow_link": slow(env),
        "tmux": tmux,
        "tmux_set_clipboard": clipboard,
    }
    problems = []
    if is_one and env.get("TERM", "") in ("", "dumb", "unknown"):
        what = f"TERM is {env.get('TERM') or 'not set'}: the screen is drawn as if it could do all"
        problems.append(Problem(what=what, fix="export TERM=xterm-256color", broken=False))
    if encoding(env) != "utf-8":
        what = f"the locale's encoding is {encoding(env)}: the screen is drawn with ASCII"
        problems.append(Problem(what=what, fix="export LC_ALL=C.UTF-8", broken=False))
    if size is not None and size.columns > 0 and (size.columns < SMALLEST[0] or size.lines < SMALLEST[1]):
        what = f"the terminal has {size.columns}×{size.lines} characters; {SMALLEST[0]}×{SMALLEST[1]} are the least"
        problems.append(Problem(what=what, fix="resize -s 24 80", broken=False))
    if clipboard == "off":
        what = "tmux keeps what is copied from the clipboard (OSC 52)"
        problems.append(Problem(what=what, fix="tmux set -s set-clipboard on", broken=False))
    return Finding(subject="terminal", facts=facts, problems=tuple(problems))


def _colours(env: Mapping[str, str]) -> str:
    if env.get("NO_COLOR"):
        return "none (NO_COLOR)"
    if env.get("COLORTERM") in ("truecolor", "24bit"):
        return "16 million"
    return "256" if "256color" in env.get("TERM", "") else "16"


def _tmux_clipboard() -> str | None:
    try:
        asked = subprocess.run(
            ["tmux", "show-options", "-sv", "set-clipboard"], capture_output=True, text=True, timeout=2
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return asked.stdout.strip() or None


def look_at_keys() -> Finding:
    """The user's key map."""
    from workbench.store.places import places

    try:
        from workbench.app.user_keys import read_keymap  # brings Textual along

        keymap = read_keymap(places().keymap)
    except (HomeError, ImportError):
        return Finding(subject="keys")
    except DocumentError as error:
        return Finding(subject="keys", problems=(broken_document(error, broken=False),))
    return Finding(subject="keys", facts=dict(keymap.own))


# ── printing ──────────────────────────────────────────────────────────────────────────────
def report_json(report: Report, hide: Mask) -> str:
    """One object: `broken`, `problems`, and the facts by subject."""
    value: dict[str, Any] = {"broken": report.broken, "problems": msgspec.to_builtins(report.problems)}
    value |= {finding.subject: msgspec.to_builtins(finding.facts) for finding in report.findings}
    return json_text(hide.all(value))


def report_text(report: Report, hide: Mask) -> str:
    """Subject by subject, then what is amiss and what mends it."""
    parts = [f"{finding.subject}\n{_facts(hide.all(finding.facts))}" for finding in report.findings if finding.facts]
    parts.append(hide.text("\n".join(_problem(problem) for problem in report.problems)) or "nothing is amiss")
    return "\n\n".join(parts)


def _problem(problem: Problem) -> str:
    lines = [f"{'✗' if problem.broken else '·'} {problem.what}"]
    lines += [f"    {line}" for line in (problem.fix or "").splitlines()]
    return "\n".join(lines)


def _facts(facts: Facts | Sequence[Facts]) -> str:
    if isinstance(facts, dict):
        width = max(len(_head(name)) for name in facts)
        return "\n".join(f"  {_head(name):<{width}}  {_said(name, value)}".rstrip() for name, value in facts.items())
    heads = list(facts[0])
    rows = [tuple(_head(name) for name in heads), *(tuple(_said(name, row[name]) for name in heads) for row in facts)]
    return "\n".join(f"  {line}" for line in table(rows).splitlines())


def _head(name: str) -> str:
    return name.removesuffix("_mib").replace("_", " ")


def _said(name: str, value: Any) -> str:
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_mib"):
        return format_mib(value)
    return ", ".join(value) or "none" if isinstance(value, list) else str(value)
