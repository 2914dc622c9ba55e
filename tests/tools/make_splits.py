#!/usr/bin/env python3
"""make_splits.py - strings and the words that a published regular expression splits them into.

    make_splits.py | xz -9 > tests/data/tekken.splits.jsonl.xz

Each line is {"text": ..., "ends": [byte offsets where words end]}.  The splits are made by the Split
pre-tokenizer of the `tokenizers` package (PyPI), with the expression of Mistral Nemo's tokenizer.json;
the strings come from a seed.  test_tokenizer_splits.c compares models/tokenizer/pretok.c with them."""

import json
import random
import sys
import unicodedata

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+")
N, SEED = 4000, 14

WORDS = ("the Quick brown FOX iPhone HTTPServer camelCaseWord it's WE'LL don't x86_64 naïve Ελλάδα ΑΒΓδ "
         "Москва ПРИВЕТ 中文字 日本語テスト 한국어 ไทย हिन्दी العربية עברית ǅungla ʰpa aʰB 中AB中 Ⅷ ½ "
         "https://example.com/a/b?c=D /usr/local/ C++ // /* */ <unk> [INST] $5.99 100% @you #tag a.b.C").split()
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\n/", "\u00a0", "\u3000", "\u2028", "\u0085",
          "\x1c", "\u200b"]
PUNCTUATION = list("!?.,;:'\"()[]{}<>/\\|-_=+*&^%$#@~`") + ["…", "—", "“", "”", "€", "😀", "🏳️‍🌈", "\u0301", "\u20dd"]


def letters():
    """Some of each category that the expression tells apart, from all planes."""
    by = {}
    for c in range(0x110000):
        by.setdefault(unicodedata.category(chr(c)), []).append(chr(c))
    return {k: v for k, v in by.items() if k in ("Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No")}


def text_of(rng, by):
    kind = rng.randrange(4)
    parts = []
    if kind == 0:  # words and what stands between them
        for _ in range(rng.randint(1, 12)):
            parts += [rng.choice(WORDS), rng.choice(SPACES + PUNCTUATION)]
    elif kind == 1:  # categories at random
        for _ in range(rng.randint(1, 24)):
            parts.append(rng.choice(by[rng.choice(list(by))]))
    elif kind == 2:  # short runs of what backtracks
        alphabet = ["A", "B", "a", "b", "ǅ", "ʰ", "中", "\u0301", "\u0903", " ", "'", "/", "\n", "1", "."]
        parts = [rng.choice(alphabet) for _ in range(rng.randint(1, 20))]
    else:
        for _ in range(rng.randint(1, 16)):
            parts.append(rng.choice((rng.choice(WORDS), rng.choice(PUNCTUATION), rng.choice(SPACES),
                                     rng.choice(by[rng.choice(list(by))]))))
    return "".join(parts)


def main():
    split, rng, by = Split(Regex(TEKKEN), "isolated"), random.Random(SEED), letters()
    for _ in range(N):
        text = text_of(rng, by)
        ends = []
        for word, (begin, end) in split.pre_tokenize_str(text):
            ends.append(len(text[:end].encode()))
        json.dump({"text": text, "ends": ends}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
