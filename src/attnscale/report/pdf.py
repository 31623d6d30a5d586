"""The web page printed to a PDF file by a browser that is there anyway."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from attnscale.errors import UserError
from attnscale.files import replacing

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SECONDS = 300


def find_browser() -> str | None:
    """Path of the first browser of `BROWSERS` that is installed; None without one."""
    return next((path for path in map(shutil.which, BROWSERS) if path), None)


def browser_command(browser: str, profile: Path) -> list[str]:
    """A command line of the browser without a window, a network or a user's profile."""
    command = [browser, "--headless", "--disable-gpu", "--disable-background-networking", "--disable-extensions"]
    command += ["--no-first-run", "--hide-scrollbars", f"--user-data-dir={profile}"]
    # As root, in containers above all, its sandbox refuses to start; the pages are our own.
    return [*command, "--no-sandbox"] if os.geteuid() == 0 else command


def write_pdf(page: Path, output: Path) -> None:
    """Print a report.

    Args:
        page: `index.html` of a report.
        output: the PDF file to write; it holds the time of printing, so it is never the same twice.

    Raises:
        UserError: there is no page, no browser, or the browser fails.
    """
    if not page.is_file():
        raise UserError(f"{page} is missing; write the report first")
    browser = find_browser()
    if browser is None:
        raise UserError(
            f"no browser to print with, looked for {', '.join(BROWSERS)}; install one or print {page} by hand"
        )
    with tempfile.TemporaryDirectory(prefix="attnscale-pdf-") as profile, replacing(output) as temporary:
        printing = ["--no-pdf-header-footer", f"--print-to-pdf={temporary.resolve()}", page.resolve().as_uri()]
        try:
            done = subprocess.run(
                [*browser_command(browser, Path(profile)), *printing],
                capture_output=True,
                timeout=SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"{browser} did not print {page} within {SECONDS} s; print it by hand") from None
        if done.returncode or not temporary.read_bytes().startswith(b"%PDF"):
            raise UserError(f"{browser} could not print {page} (exit code {done.returncode}); print it by hand")
