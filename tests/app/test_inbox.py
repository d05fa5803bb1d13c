"""Events cross threads in order, and text does not wake anyone."""

import threading

from workbench.app.inbox import Inbox
from workbench.lab.events import Notice, SessionEvent, TurnText


def test_texts_are_joined_and_keep_their_place() -> None:
    woken: list[int] = []
    inbox = Inbox(lambda: woken.append(1))
    for event in (TurnText("a"), TurnText("b"), Notice("n"), TurnText("c")):
        inbox(event)
    assert inbox.fetch() == (TurnText("ab"), Notice("n"), TurnText("c"))
    assert inbox.fetch() == ()
    assert len(woken) == 1


def test_a_burst_wakes_once_until_it_is_fetched() -> None:
    woken: list[int] = []
    inbox = Inbox(lambda: woken.append(1))
    for _ in range(5):
        inbox(Notice("n"))
    assert len(woken) == 1
    inbox.fetch()
    inbox(Notice("n"))
    assert len(woken) == 2


def test_nothing_is_lost_between_threads() -> None:
    inbox = Inbox(lambda: None)
    got: list[SessionEvent] = []

    def write() -> None:
        for number in range(5000):
            inbox(TurnText(f"{number} "))

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        got += inbox.fetch()
    got += inbox.fetch()
    text = "".join(event.text for event in got if isinstance(event, TurnText))
    assert text.split() == [str(number) for number in range(5000)]
