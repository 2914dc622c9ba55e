"""scripts/manual: the pages and completions have every command and option of the help texts, and are valid."""

import os
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, ROOT, skip


def say(*command, **kw):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **kw).stdout


def need(program):
    if shutil.which(program) is None:
        skip(f"{program} is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    to = tmp_path_factory.mktemp("manual")
    say(ROOT / "scripts/manual", to, "--build", BUILD, env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
    return to


@pytest.fixture(scope="module")
def helps():
    """{command: its help}"""
    names = re.findall(r"^  ([a-z]+)  ", say(BUILD / "inferd", "--help"), re.M)
    assert len(names) >= 10
    return {n: say(BUILD / "inferd", n, "--help") for n in names}


def options(text):
    return set(re.findall(r"(?<!serve )--[a-z][a-z-]*", text)) | {"--help"}


def shown(page):
    """As `man` prints it, in lines without end."""
    text = say("man", "-l", page, env={**os.environ, "MANWIDTH": "5000", "LC_ALL": "C.UTF-8"})
    return re.sub(r"\s+", " ", text)


def test_pages_have_what_the_help_says(made, helps):
    need("man")
    main = shown(made / "man1/inferd.1")
    for name, text in helps.items():
        assert f" {name} " in main
        if name == "version":
            continue
        page = shown(made / f"man1/inferd-{name}.1")
        words = re.findall(r"[A-Za-z0-9$][\w./$-]*", re.sub("exit status", "", text.partition("\n\n")[2], flags=re.I))
        missing = [w for w in words if w.rstrip(".") not in page]
        assert not missing, (name, missing)


def test_exit_statuses_have_a_section(made, helps):
    need("man")
    told = {n for n, text in helps.items() if re.search(r"\bexit status\b[^.:]*:", text, re.I)}
    assert told >= {"check", "ctl", "doctor", "run"}
    for name in told:
        said = shown(made / f"man1/inferd-{name}.1").partition("EXIT STATUS ")[2]
        assert said.startswith("0 "), name


def test_every_setting_is_in_the_page(made):
    need("man")
    page = shown(made / "man5/inferd.json.5")
    rows = re.findall(r"^\| `(\w+)` \|", say(BUILD / "inferd", "check", "--describe"), re.M)
    assert len(rows) > 80
    assert all(f" {name} (" in page for name in rows)


def test_pages_are_valid(made):
    need("mandoc")
    pages = sorted(made.glob("man*/*"))
    assert len(pages) > 9
    assert subprocess.run(["mandoc", "-Tlint", "-W", "style", *pages], stdout=subprocess.PIPE, text=True).stdout == ""
    for page in pages:
        assert say("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page).startswith("x T utf8"), page


COMPLETE = """
source "$0"; compopt() {{ :; }}
COMP_WORDS=({words} ''); COMP_WORDS[-1]="$1"; COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_inferd
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def completed(made, words, last):
    return set(say("bash", "-euc", COMPLETE.format(words=words), made / "bash/inferd", last).split())


def test_bash_completes_commands_options_and_values(made, helps):
    assert completed(made, "inferd", "") == {*helps, "--help", "--version"}
    assert completed(made, "inferd", "se") == {"serve"}
    for name, text in helps.items():
        assert completed(made, f"inferd {name}", "--") == options(text), name
    assert completed(made, "inferd ctl", "un") == {"unload", "undrain", "unpin"}
    assert completed(made, "inferd ctl pin chat --level", "") == {"warm", "hot"}
    assert completed(made, "inferd serve --config", "") == set()  # files: compopt -o default


def test_bash_completes_what_may_follow_a_word_of_ctl(made, tmp_path, monkeypatch):
    (tmp_path / "plan.json").touch()
    monkeypatch.chdir(tmp_path)
    for before in ("", "--socket /run/a.sock", "--url http : //localhost : 8080", "--json --key-env NAME"):
        assert completed(made, f"inferd ctl {before}", "un") == {"unload", "undrain", "unpin"}
        assert completed(made, f"inferd ctl {before} set", "") == {"model", "tenant"}
        assert completed(made, f"inferd ctl {before} config", "") == {"get", "put"}
        assert completed(made, f"inferd ctl {before} plan", "") == {"model", "plan.json"}
        for words in ("slow", "load", "config put", "set model", "slow cpu0", "plan model", "pin set"):
            assert completed(made, f"inferd ctl {before} {words}", "") == set(), words  # files
    assert completed(made, "inferd ctl set model", "--p") == {"--persist"}


# A terminal for zsh: it types, presses Tab twice, and shows what was printed.
ZSH = """
zmodload zsh/zpty
zpty z zsh -f -i
zpty -w z 'PROMPT=; unset zle_bracketed_paste; fpath=('"$1"' $fpath); autoload -U compinit; compinit -u -D; stty columns 400 rows 200'
zpty -w z 'zstyle ":completion:*" list-prompt ""; zstyle ":completion:*" menu no; LISTMAX=9999; print READ''Y'
zpty -r -m z line '*READY*'
zpty -w -n z "$2"$'\\t\\t'
zpty -w -n z $'\\x15print EN\\'\\'D\\n'
zpty -r -m z line '*END*'
print -r -- $line
zpty -d z
"""


def test_zsh_completes_commands_and_options(made, helps, tmp_path):
    need("zsh")
    env = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    type_ = lambda text: say("zsh", "-f", "-c", ZSH, "zsh", made / "zsh", text, env=env, timeout=60)
    assert set(helps) <= set(re.findall(r"[a-z]+", type_("inferd ")))
    for name in ("serve", "ctl", "run"):
        said = set(re.findall(r"--[a-z][a-z-]*", type_(f"inferd {name} --")))
        assert options(helps[name]) <= said, (name, said)
