"""Progress of long work: a bar on a terminal, plain lines in a log."""

import os
import sys
import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SECONDS_BETWEEN_NOTICES = 30.0


class Reporter:
    """Shows how far a job is.

    On a terminal: one bar on stderr. Otherwise: a line on stderr each time `update` is called. When
    stderr goes to a log and stdout elsewhere, as under Snakemake, stdout gets a line every half minute,
    so that whoever watches the workflow sees it move.

    Args:
        title: what is being done, such as "train attention_o seed 0".
        total: steps in all.
        done: steps already done when the job starts (a resumed run).
        unit: what a step is called.
    """

    def __init__(self, title: str, total: int, done: int = 0, unit: str = "step") -> None:
        self.title, self.total, self.unit = title, total, unit
        self._start, self._first, self._noticed = time.monotonic(), done, time.monotonic()
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(title, total=total, completed=done, note="")
        self._notices = self._bar is None and not _same_file(1, 2)

    def __enter__(self) -> "Reporter":
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int, note: str) -> None:
        """Tell that `done` steps are finished; `note` holds the figures to show."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, note=note)
            return
        line = f"{self.title}: {self.unit} {done}/{self.total}, {note}{self._time_left(done)}"
        print(line, file=sys.stderr, flush=True)
        if self._notices and time.monotonic() - self._noticed >= SECONDS_BETWEEN_NOTICES:
            self._noticed = time.monotonic()
            print(line, flush=True)

    def _time_left(self, done: int) -> str:
        if done <= self._first or done >= self.total:
            return ""
        seconds = (time.monotonic() - self._start) / (done - self._first) * (self.total - done)
        minutes, rest = divmod(round(seconds), 60)
        return f", {minutes}:{rest:02d} left"


def log(message: str) -> None:
    """One line for the log (stderr)."""
    print(message, file=sys.stderr, flush=True)


def _same_file(first: int, second: int) -> bool:
    try:
        one, other = os.fstat(first), os.fstat(second)
    except OSError:
        return True
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
