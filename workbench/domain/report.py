"""What `workbench doctor` finds: facts by subject, what is amiss, and what mends it; nothing secret in it."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

Facts = dict[str, Any]
"""Plain values by name; None where unknown."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What is amiss, and the one command that mends it, if one does.

    `broken` is what keeps something from working; else it is worth knowing.
    """

    what: str
    fix: str | None = None
    broken: bool = True


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One subject: its facts, or a list of them, and what is amiss."""

    subject: str
    facts: Facts | tuple[Facts, ...] = msgspec.field(default_factory=dict)
    problems: tuple[Problem, ...] = ()


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All subjects in their order."""

    findings: tuple[Finding, ...]

    @property
    def problems(self) -> tuple[Problem, ...]:
        """What is broken first, then what is worth knowing."""
        found = [problem for finding in self.findings for problem in finding.problems]
        return tuple(sorted(found, key=lambda problem: not problem.broken))

    @property
    def broken(self) -> bool:
        """Whether something does not work."""
        return any(problem.broken for problem in self.problems)


class Mask(msgspec.Struct, frozen=True, kw_only=True):
    """Takes the names of a person and a machine out of a text; what is left still works in a shell."""

    home: str | None
    user: str | None
    host: str | None

    def text(self, text: str) -> str:
        """`/home/ann/x` becomes `~/x`, `/data/ann` becomes `/data/$USER`."""
        if self.home and self.home != "/":
            text = re.sub(rf"{re.escape(self.home.rstrip('/'))}(?![\w.-])", "~", text)
        for name, stands in ((self.user, "$USER"), (self.host, "$HOSTNAME")):
            if name and (name != "root" or stands != "$USER"):
                text = re.sub(rf"(?<![\w.$-]){re.escape(name)}(?![\w-])", stands.replace("\\", ""), text)
        return text

    def all(self, value: Any) -> Any:
        """The same for every text in plain values; keys are ours."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.all(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.all(each) for each in value]
        return value
