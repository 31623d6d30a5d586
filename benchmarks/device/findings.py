"""What was found so far, and how much time is left for more."""

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attnscale.errors import UserError
from attnscale.files import write_json

SUMMARY = "summary.json"


class Findings:
    """Plain lines, `summary.json` and the clock.

    Args:
        folder: where the files go.
        minutes: the budget.
        started: when the command started, as `clock` tells it.
        clock: seconds.
    """

    def __init__(
        self, folder: Path, minutes: float, started: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.folder = folder
        self.seconds = 60 * minutes
        self.summary: dict[str, Any] = {"minutes": minutes}
        self.problems: list[str] = []
        self._started, self._clock = started, clock

    def used(self) -> float:
        """Seconds since the command started."""
        return self._clock() - self._started

    def left(self, share: float = 1.0) -> float:
        """Seconds left of a share of the budget."""
        return share * self.seconds - self.used()

    def say(self, line: str) -> None:
        """Print a line with the time in front."""
        print(f"{self.used():5.0f} s  {line}", flush=True)

    def check(self, holds: bool, sentence: str) -> None:
        """Note a finding that should have been another; the command then ends with an error."""
        if not holds:
            self.problems.append(sentence)
            self.say(f"NOT AS IT SHOULD BE: {sentence}")

    def part(self, name: str, until: float, work: Callable[[dict[str, Any]], None]) -> None:
        """Do one part and write what it found. A part that fails leaves the others their chance.

        Args:
            name: of the part, its key in the summary.
            until: share of the budget after which it does not start any more.
            work: the part; gets a dictionary to fill.

        Raises:
            OSError: what was found cannot be written.
        """
        if self.left(until) <= 0:
            self.summary[name] = {"left_out": "no time was left"}
            self.say(f"{name}: left out, no time was left")
        else:
            found: dict[str, Any] = {}
            self.summary[name] = found
            begun = self.used()
            try:
                work(found)
            except UserError as error:
                found["failed"] = str(error)
                self.check(False, f"{name}: {error}")
            except Exception as error:  # the kinds are not enumerable: out of memory, a kernel, a compiler
                traceback.print_exc(file=sys.stderr)
                found["failed"] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                self.check(False, f"{name} failed with {found['failed']}")
            found["seconds"] = round(self.used() - begun, 1)
        self.write()

    def write(self) -> None:
        """Write `summary.json` with all that is known."""
        write_json(self.folder / SUMMARY, {**self.summary, "problems": self.problems})
