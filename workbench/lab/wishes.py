"""Which of the switches that were asked for is still wanted."""

from workbench.engines.engine import LoadCancelled


class Wishes:
    """Numbers each wish; only the last one is wanted, and none that was dropped."""

    def __init__(self) -> None:
        self._asked = 0
        self._dropped = 0
        self._settled = 0

    def ask(self) -> int:
        """The number of a new wish."""
        self._asked += 1
        return self._asked

    def drop(self) -> None:
        """Forget all wishes so far."""
        self._dropped = self._asked

    def settle(self, number: int) -> None:
        """This one serves, or failed."""
        self._settled = number

    @property
    def unsettled(self) -> bool:
        """Whether one is neither served nor failed; it may not have begun to load."""
        return self._settled < self._asked

    def overtaken(self, number: int) -> bool:
        """Whether another was asked for since."""
        return number < self._asked

    def check(self, number: int) -> None:
        """Raise LoadCancelled where another was asked for since, or this one was dropped."""
        if self.overtaken(number) or number <= self._dropped:
            raise LoadCancelled("the load was cancelled")
