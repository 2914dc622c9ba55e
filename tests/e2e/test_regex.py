"""Patterns against Python's re: random patterns and texts, and what both languages must agree on.

Beyond ASCII an automaton may accept less than Python (ECMA-262 knows fewer letters and digits), never more."""

import random
import re
import subprocess
import warnings

import pytest

from conftest import BUILD

SEED = 20261127
LETTERS = 'aabbcd012_- "\\/\n\té\u2028😀.'
NARROWER = re.compile("[^\x00-\x7f]|\r")  # where an automaton may accept less

warnings.simplefilter("ignore")  # Python warns of "[[" and the like


def any_class(r):
    members = []
    for _ in range(r.randint(1, 3)):
        kind = r.random()
        if kind < 0.4:
            members.append(r.choice(["a", "b", "c", "0", "1", "_", "é", r"\n", r"\"", r"\\", "/", r"\-", r"\]", "😀"]))
        elif kind < 0.7:
            members.append(r.choice(["a-c", "0-9", "b-d", r"\x20-\x7e", "à-ö", r"\t-\r"]))
        else:
            members.append(r.choice([r"\d", r"\w", r"\s", r"\D", r"\S"]))
    return "[" + r.choice(["", "^"]) + "".join(members) + "]"


def any_atom(r, depth):
    kind = r.random()
    if kind < 0.45:
        return r.choice(["a", "b", "c", "d", "0", "1", "_", "-", " ", '"', r"\\", r"\.", r"\n", r"\/", "é", "😀"])
    if kind < 0.6:
        return r.choice([".", r"\d", r"\w", r"\s", r"\D", r"\W", r"\S"])
    if kind < 0.72:
        return any_class(r)
    if kind < 0.8:
        return r.choice(["^", "$"])
    if depth == 0:
        return "a"
    return r.choice(["(", "(?:", f"(?P<n{r.randint(0, 10**9)}>"]) + any_pattern(r, depth - 1) + ")"


def any_item(r, depth):
    atom = any_atom(r, depth)
    if atom in "^$" or r.random() < 0.6:
        return atom
    return atom + r.choice(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{0,2}", "{2,}", "{,2}", "{0}"])


def any_pattern(r, depth=3):
    branches = r.choice([1, 1, 1, 2, 3])
    return "|".join("".join(any_item(r, depth) for _ in range(r.randint(0, 4))) for _ in range(branches))


def any_text(r):
    return "".join(r.choice(LETTERS) for _ in range(r.randint(0, 8)))


def match(cases):
    """For each (pattern, texts) a list of sums as regex_match writes them, or its refusal."""
    lines = [" ".join(x.encode().hex() or "-" for x in [pattern, *texts]) for pattern, texts in cases]
    p = subprocess.run([BUILD / "tests" / "regex_match"], input="\n".join(lines) + "\n", capture_output=True, text=True,
                       timeout=120, check=True)
    return [line if line.startswith("refused") else [int(x) for x in line.split()] for line in p.stdout.splitlines()]


def wanted(pattern, text):
    # "$" of ECMA-262 does not match before a newline at the end
    rx = re.compile(pattern.replace("$", r"\Z"))
    whole = rx.fullmatch(text) is not None
    return whole * 3 + 4 * (rx.search(text) is not None)


def any_beginning(r):
    """Look-aheads, then a group."""
    looks = "".join(r.choice(["(?=", "(?!"]) + any_pattern(r, 1) + ")" for _ in range(r.choice([1, 1, 2])))
    return "^" + looks + "(?:" + any_pattern(r, 1) + ")" + r.choice(["", "$"])


@pytest.mark.parametrize("draw, n_patterns", [(any_pattern, 1500), (any_beginning, 700)])
def test_random_patterns_agree_with_python(draw, n_patterns):
    r = random.Random(SEED)
    cases = [(draw(r), [any_text(r) for _ in range(25)]) for _ in range(n_patterns)]
    refused = 0
    for (pattern, texts), got in zip(cases, match(cases), strict=True):
        if isinstance(got, str):
            assert "states" in got, (pattern, got)  # nothing that Python understands is unknown
            refused += 1
            continue
        for text, sums in zip(texts, got, strict=True):
            want = wanted(pattern, text)
            assert sums & ~want == 0, (pattern, text, "accepts more")
            assert sums == want or NARROWER.search(text) or text.endswith("\n"), (pattern, text, "accepts less")
    assert refused < 15


@pytest.mark.parametrize("escape", [r"\d", r"\D", r"\w", r"\W", r"\s", r"\S", ".", r"[^\d]", r"[^\w]", r"[^\s]", r"[^\D]",
                                    r"[^\W]", r"[^\S]"])
def test_every_character_of_a_class_is_one_in_python(escape):
    texts = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x3000 or c % 7 == 0)]
    got = match([(escape, texts[i:i + 20000]) for i in range(0, len(texts), 20000)])
    rx = re.compile(escape)
    for text, sums in zip(texts, (x for line in got for x in line), strict=True):
        assert sums == 0 or rx.fullmatch(text), (escape, hex(ord(text)))
        if ord(text) < 128 and text not in "\r\x1c\x1d\x1e\x1f":
            assert (sums == 7) == (rx.fullmatch(text) is not None), (escape, text)
