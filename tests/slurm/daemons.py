"""A real Slurm on the loopback address: munged, slurmctld and slurmd as one node in a folder that is thrown away.

No accounting database: `sacct` answers nothing here, as on many small clusters, so job states come from `squeue`.
"""

import contextlib
import ctypes
import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
NODE = "node1"
# Every process of this Slurm and of its jobs has it in its environment.
MARK = "ATTNSCALE_TEST_SLURM"
CPUS = 2
# Daemons live where only root looks for programs.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])

CONF = """\
ClusterName=attnscale
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={control_port}
SlurmdPort={node_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
# A container has no cgroups to give away; the tree of processes does.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# A node that comes back after it was down takes jobs again at once.
ReturnToService=2
# Finished jobs stay in squeue that long; the plugin wants three times the seconds between its questions.
MinJobAge=3600
OverTimeLimit=0
KillWait=30
SlurmdTimeout=20
GresTypes=gpu
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=16000 Gres=gpu:1 State=UNKNOWN
PartitionName=debug Nodes={node} Default=YES MaxTime=INFINITE State=UP
PartitionName=long Nodes={node} MaxTime=INFINITE State=UP
"""


class SlurmError(Exception):
    """A daemon did not come up; the message ends with the last lines of its log."""


def missing_tools() -> list[str]:
    """Programs of `slurm-wlm` and `munge` that are not installed."""
    return [name for name in TOOLS if shutil.which(name, path=PATH) is None]


class Slurm:
    """The running daemons, and what a test does to them.

    Args:
        folder: an empty folder with a short path, for a socket's path has at most 107 characters.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """What clients need to find this Slurm and no other."""
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
        path = f"{self.folder / 'bin'}{os.pathsep}{PATH}"
        return {**outer, "PATH": path, "SLURM_CONF": str(self.conf), MARK: str(self.folder)}

    def start(self) -> None:
        """Write the configuration and start all daemons; returns when the node is idle."""
        for name in ("state", "spool", "bin"):
            (self.folder / name).mkdir()
        # Inside a job the plugin drops SLURM_CONF, which only matters where the file is not in /etc/slurm.
        srun = self.folder / "bin" / "srun"
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={self.conf} exec {shutil.which("srun", path=PATH)} "$@"\n')
        srun.chmod(0o755)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self.conf.write_text(
            CONF.format(
                host=socket.gethostname().partition(".")[0], user=getpass.getuser(), folder=self.folder, node=NODE,
                cpus=CPUS, control_port=_free_port(), node_port=_free_port(),
            ),
            encoding="utf-8",
        )  # fmt: skip
        # A device that is always there stands for a GPU: Slurm hands it out, nothing computes on it.
        (self.folder / "gres.conf").write_text(f"NodeName={NODE} Name=gpu File=/dev/null\n", encoding="utf-8")
        self._start(
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed",
            f"--log-file={self.folder}/munged.log", "--num-threads=2",
        )  # fmt: skip
        self._wait("munged", lambda: (self.folder / "munge.socket").exists())
        self.start_controller()
        self.start_node()

    def start_controller(self) -> None:
        """Start slurmctld with the state that an earlier one has saved; returns when it answers."""
        self._start("slurmctld", "-D")
        self._wait("slurmctld", lambda: self.ask("scontrol", "ping").returncode == 0)

    def start_node(self) -> None:
        """Start slurmd; returns when the node takes jobs."""
        self._start("slurmd", "-D", "-N", NODE)
        self._wait("slurmd", lambda: self.node_state() in ("idle", "mixed", "allocated"))

    def stop(self) -> None:
        """End every job and daemon, whatever state they are in."""
        with contextlib.suppress(subprocess.SubprocessError):
            self.ask("scancel", "--user", getpass.getuser(), timeout=20)
            self._until(lambda: not self.unfinished(), seconds=40)
        for name in ("slurmd", "slurmctld", "munged"):
            self.end(name)
        for pid in self._left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """Send a signal to one daemon and wait for its end; SIGKILL follows after a while."""
        process = self._processes.pop(name, None)
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=15)

    def lose_node(self) -> None:
        """What a power cut does: slurmd and every process of its jobs are gone without a word."""
        self.end("slurmd", signal.SIGKILL)
        for pid in self._left_over():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ask(self, *command: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a client command to its end."""
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=timeout)

    def must(self, *command: str) -> str:
        """Run a client command that has to succeed; return what it prints."""
        done = self.ask(*command)
        if done.returncode:
            raise SlurmError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def node_state(self) -> str:
        """State of the node as `sinfo` says it, without the marks that it may carry."""
        return self.ask("sinfo", "--noheader", "--nodes", NODE, "--format", "%T").stdout.strip().partition("\n")[0]

    def jobs(self, states: str = "all") -> list[tuple[str, str, str]]:
        """(job id, state, comment) of jobs; the plugin's comment names rule and wildcards."""
        text = self.ask("squeue", "--noheader", f"--states={states}", "--format=%i|%T|%k").stdout
        return [tuple(line.split("|", 2)) for line in text.splitlines()]  # type: ignore[misc]

    def unfinished(self) -> list[tuple[str, str, str]]:
        """Jobs that wait, run or are being cleaned up after."""
        return [
            job for job in self.jobs() if job[1] in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED")
        ]

    def running(self, comment: str) -> str | None:
        """Id of the running job with that comment."""
        return next((job for job, _, text in self.jobs("RUNNING") if text == comment), None)

    def _start(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=PATH)
        if program is None:
            raise SlurmError(f"{name} is not installed")
        with (self.folder / f"{name}.out").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [program, *arguments], env=self.environment, stdout=output, stderr=output, start_new_session=True,
                preexec_fn=_end_with_parent,
            )  # fmt: skip

    def _wait(self, name: str, ready: Callable[[], bool]) -> None:
        process = self._processes[name]
        if not self._until(lambda: process.poll() is not None or ready(), seconds=60) or process.poll() is not None:
            logs = [self.folder / f"{name}.out", self.folder / f"{name}.log"]
            last = "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())
            raise SlurmError(f"{name} did not come up:\n{last}")

    @staticmethod
    def _until(condition: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        return True

    def _left_over(self) -> list[int]:
        """Processes of jobs and their keepers, known by the environment that they have inherited."""
        mark = f"{MARK}={self.folder}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                values = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
                job = any(value.startswith(b"SLURM_JOB_ID=") for value in values)
                if mark in values and (job or (entry / "cmdline").read_bytes().startswith(b"slurmstepd")):
                    found.append(int(entry.name))
        return found


def _end_with_parent() -> None:
    """Have Linux end this process when the tests are killed without a chance to do it."""
    set_signal_at_death_of_parent = 1
    ctypes.CDLL(None).prctl(set_signal_at_death_of_parent, signal.SIGTERM)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running_slurm() -> Iterator[Slurm]:
    """Start a Slurm, yield it, and stop all of it, also after a failure."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    slurm = Slurm(folder)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()
        shutil.rmtree(folder, ignore_errors=True)
