"""Contestants that work by turns, each in a process of its own.

Our loop sets torch's threads, determinism and memory allocation for its whole process; in one process the others
would get that too. A contestant is a generator function: what it does up to its first `yield` is building and is
not timed, then every turn runs it to its next `yield`.
"""

import contextlib
import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from attnscale.errors import UserError

SPAWN = multiprocessing.get_context("spawn")  # a forked child would inherit torch's threads, which do not survive


class Entry(NamedTuple):
    """A generator function, which a new process must be able to import, and its arguments."""

    work: Callable[..., Iterator[Any]]
    arguments: tuple[Any, ...]


Times = dict[str, list[float]]
"""Seconds of each turn, by contestant; turn 0 also allocates memory and compiles."""


class Contestant:
    """One entry in its process, built and waiting."""

    def __init__(self, name: str, entry: Entry) -> None:
        self.name = name
        self._pipe, theirs = SPAWN.Pipe()
        self._process = SPAWN.Process(target=_serve, args=(theirs, *entry))
        self._process.start()
        theirs.close()
        self._receive()

    def turn(self) -> tuple[float, Any]:
        """Let it work until its next `yield`.

        Returns:
            Seconds, and what it yields.

        Raises:
            UserError: its process is gone.
        """
        self._pipe.send(None)
        seconds, value = self._receive()
        return seconds, value

    def close(self) -> None:
        """End its process."""
        self._pipe.close()
        self._process.join(timeout=2)
        self._process.terminate()
        self._process.join()

    def _receive(self) -> Any:
        try:
            return self._pipe.recv()
        except EOFError:
            self.close()
            raise UserError(
                f"the process of {self.name} ended early; see what it printed above, or give the machine more memory"
            ) from None


def _serve(pipe: Connection, work: Callable[..., Iterator[Any]], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's; its end of the pipe then closes
    turns = work(*arguments)
    next(turns)
    with contextlib.suppress(EOFError, BrokenPipeError):
        pipe.send(None)
        while True:
            pipe.recv()
            start = time.perf_counter()
            value = next(turns)
            pipe.send((time.perf_counter() - start, value))


def race(entries: Mapping[str, Entry], repeats: int) -> Times:
    """Turns of all entries, `repeats` + 1 of each: A B C A B C …, so that a slow moment of the machine meets all."""
    with contextlib.ExitStack() as stack:
        contestants = []
        for name, entry in entries.items():
            contestants.append(Contestant(name, entry))
            stack.callback(contestants[-1].close)
        times: Times = {one.name: [] for one in contestants}
        for _ in range(repeats + 1):
            for one in contestants:
                times[one.name].append(one.turn()[0])
        return times


def median_ratio(above: list[float], below: list[float]) -> float:
    """Median over the turns of their ratios, without turn 0."""
    return statistics.median(a / b for a, b in zip(above[1:], below[1:], strict=True))


def once(name: str, entry: Entry) -> Any:
    """What an entry yields after one turn in a fresh process."""
    contestant = Contestant(name, entry)
    try:
        return contestant.turn()[1]
    finally:
        contestant.close()
