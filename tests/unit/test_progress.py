"""What somebody who waits gets to see: a bar on a terminal, plain lines in a log."""

import os
import pty
import re
import subprocess
import sys

from attnscale import progress
from attnscale.progress import Reporter

SCRIPT = (
    "from attnscale.progress import Reporter\n"
    "with Reporter('train a seed 0', 40) as reporter:\n"
    "    for step in (10, 20, 40):\n"
    "        reporter.update(step, f'loss {9 - step / 10:.3f}, accuracy 5.0%, 1,234 tokens/s')\n"
)


def test_a_terminal_gets_a_bar_with_figures_and_time_left():
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140"}
    process = subprocess.Popen([sys.executable, "-c", SCRIPT], stderr=theirs, stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    assert process.wait() == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())
    assert "━" in text
    assert "40/40" in text
    assert "loss 5.000, accuracy 5.0%, 1,234 tokens/s" in text
    assert re.search(r"\d:\d\d:\d\d", text)


def test_a_log_gets_plain_lines(tmp_path):
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run([sys.executable, "-c", SCRIPT], stderr=log, stdout=subprocess.PIPE, text=True)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 3
    assert re.fullmatch(
        r"train a seed 0: step 10/40, loss 8\.000, accuracy 5\.0%, 1,234 tokens/s, \d+:\d\d left", lines[0]
    )
    assert lines[-1] == "train a seed 0: step 40/40, loss 5.000, accuracy 5.0%, 1,234 tokens/s"
    assert "\x1b" not in "".join(lines)
    assert done.stdout == ""  # too soon for a notice


def test_stdout_gets_a_notice_now_and_then_when_stderr_is_a_log(monkeypatch, capfd):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_NOTICES", 0.0)
    with Reporter("train a seed 0", 40) as reporter:
        reporter.update(10, "loss 8.000")
    shown = capfd.readouterr()
    assert shown.out == shown.err
    assert shown.out.startswith("train a seed 0: step 10/40, loss 8.000")


def test_a_resumed_job_counts_its_time_from_where_it_began(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 10.0, 10.0, 10.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with Reporter("train a seed 0", 40, done=20) as reporter:
        reporter.update(30, "loss 8.000")
    assert capsys.readouterr().err.endswith("0:10 left\n")
