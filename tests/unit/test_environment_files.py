"""The locks: complete, hashed, free of addresses, and what this environment really holds."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ["run.lock", "test.lock", "cluster.lock", "cuda.lock"]
PYTHONS = ["3.11", "3.12", "3.13"]


def pins(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Each requirement of a lock file with the options that follow it."""
    text = (ROOT / "envs" / lock).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(" --") for line in text.splitlines() if line and not line.startswith("#")]
    return [(Requirement(line[0]), [option.strip() for option in line[1:]]) for line in lines]


def names(lock: str) -> set[str]:
    """Names of the packages of a lock file."""
    return {canonicalize_name(requirement.name) for requirement, _ in pins(lock)}


def project() -> dict[str, object]:
    """The tables of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def holds(requirement: Requirement, python: str) -> bool:
    """Whether a requirement applies to Linux on x86-64 with that Python."""
    machine = {"sys_platform": "linux", "platform_machine": "x86_64", "platform_python_implementation": "CPython"}
    environment: dict[str, str] = {**machine, "python_version": python, "python_full_version": f"{python}.0"}
    return requirement.marker is None or requirement.marker.evaluate(environment)


@pytest.mark.parametrize("lock", LOCKS)
def test_every_requirement_is_one_exact_version_with_hashes(lock: str) -> None:
    assert len(pins(lock)) > (2 if lock == "cluster.lock" else 10)
    for requirement, options in pins(lock):
        assert re.fullmatch(r"==[0-9][0-9a-z.]*", str(requirement.specifier)), requirement
        assert options, requirement
        for option in options:
            assert re.fullmatch(r"hash=sha256:[0-9a-f]{64}", option), requirement


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_address(lock: str) -> None:
    text = (ROOT / "envs" / lock).read_text(encoding="utf-8")
    assert not re.search(r"://|index-url|find-links|@|\.(org|com|net|io)\b", text)


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_has_one_version_for_every_python(python: str) -> None:
    for lock in LOCKS:
        active = [requirement.name for requirement, _ in pins(lock) if holds(requirement, python)]
        assert sorted(set(active)) == sorted(active)
        assert set(active) == names(lock)


def test_no_package_is_in_two_locks() -> None:
    assert not names("run.lock") & names("test.lock")
    assert not names("cluster.lock") & (names("run.lock") | names("test.lock"))
    assert not names("cuda.lock") & (names("run.lock") | names("test.lock") | names("cluster.lock"))


@pytest.mark.parametrize("python", PYTHONS)
def test_the_locks_satisfy_what_pyproject_asks_for(python: str) -> None:
    table = project()["project"]
    assert isinstance(table, dict)
    extras = table["optional-dependencies"]
    run = {canonicalize_name(pin.name): pin for pin, _ in pins("run.lock") if holds(pin, python)}
    test = {canonicalize_name(pin.name): pin for pin, _ in pins("test.lock") if holds(pin, python)}
    cluster = {canonicalize_name(pin.name): pin for pin, _ in pins("cluster.lock") if holds(pin, python)}
    wanted = [(text, run) for text in table["dependencies"]]
    wanted += [
        (text, run | test | cluster) for extra in extras.values() for text in extra if not text.startswith("attnscale[")
    ]
    for text, found in wanted:
        requirement = Requirement(text)
        pin = found[canonicalize_name(requirement.name)]
        exact = str(pin.specifier).removeprefix("==")
        assert requirement.specifier.contains(exact, prereleases=True), f"{pin} is not {requirement}"


def test_what_builds_the_project_is_locked() -> None:
    table = project()["build-system"]
    assert isinstance(table, dict)
    assert {canonicalize_name(Requirement(text).name) for text in table["requires"]} <= names("run.lock")
    assert {"editables", "setuptools"} <= names("run.lock")


def test_torch_is_pinned_once_for_its_default_and_its_cpu_build() -> None:
    [(requirement, options)] = [pin for pin in pins("run.lock") if pin[0].name == "torch"]
    assert str(requirement) == "torch==2.13.0"
    assert len(set(options)) >= 4
    # The CPU builds for Python 3.11, 3.12 and 3.13; the default package index lists none of them.
    for start in ("6746dbcbeb526eb6", "4ca4a9394b0c7712", "3fbf9c9d1f3c10c2"):
        assert [option for option in options if option.startswith(f"hash=sha256:{start}")], start


def test_only_the_cuda_lock_holds_cuda_packages() -> None:
    cuda = re.compile(r"(nvidia|cuda)-|triton$")
    assert all(cuda.match(name) for name in names("cuda.lock"))
    assert not [name for name in names("run.lock") | names("test.lock") | names("cluster.lock") if cuda.match(name)]


def test_this_environment_holds_exactly_the_locked_versions() -> None:
    locks = ["run.lock", "test.lock"]
    if "+cpu" not in version("torch"):
        locks.append("cuda.lock")
    locked = {pin.name: pin for lock in locks for pin, _ in pins(lock) if pin.marker is None or pin.marker.evaluate()}
    different = {
        name: version(name)
        for name, pin in locked.items()
        if not pin.specifier.contains(version(name), prereleases=True)
    }
    assert not different
