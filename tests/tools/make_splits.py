#!/usr/bin/env python3
"""make_splits.py - strings and the words that published regular expressions split them into.

    make_splits.py | xz -9e > tests/data/splits.jsonl.xz
    make_splits.py --engine regex --n 20000 --seed 2 > more.jsonl
    INFERD_SPLITS=more.jsonl build/tests/test_tokenizer_splits

The first line is the list of families.  Each other line is a string and, for each family, the lengths of
its words in bytes: {"text": ..., "words": [[...], ...]}; [] stands for the same words as the family before.

The words are made by the Split pre-tokenizer of the `tokenizers` package (PyPI), with the expressions of
the published tokenizer.json files, or with those of llama.cpp where the file is not public.  Kimi K2 has
no such file, and its expression needs intersections of classes, which only the `regex` package (PyPI) has:
its words come from there.  `--engine regex` makes all words with that package, as a second opinion:
strings with characters that its newer Unicode classifies otherwise are left out.

The strings come from a seed.  test_tokenizer_splits.c compares models/tokenizer/pretok.c with them."""

import argparse
import json
import random
import sys

import regex
import unicodedataplus  # of Unicode 16, as the classes of both sides
from tokenizers import Regex
from tokenizers.pre_tokenizers import Punctuation, Sequence, Split

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
ENDS = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def llama3(numbers):
    return CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|" + numbers + r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDS


def cased(numbers, contractions=CONTRACTIONS + "?", behind=r"[\r\n/]*", no=""):
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}" + no + "]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}" + no + "]"
    return (r"[^\r\n\p{L}\p{N}]?" + upper + "*" + lower + "+" + contractions +
            r"|[^\r\n\p{L}\p{N}]?" + upper + "+" + lower + "*" + contractions +
            "|" + numbers + r"| ?[^\s\p{L}\p{N}]+" + behind + ENDS)


QWEN2 = llama3(r"\p{N}")
HAN_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
LISTED = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-"
    "\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-"
    "\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-"
    "\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-"
    "\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-"
    "\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-"
    "\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-"
    "\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943")
V3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+")
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"

PUNCTUATION_STEP = None  # not an expression: the engine's Punctuation, with the classes of Unicode 8

# By a name of tokenizer.ggml.pre that means it: the expressions, applied one after the other.
FAMILIES = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [llama3(r"\p{N}{1,3}")],
    "qwen2": [QWEN2],
    "bailingmoe": [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]"
                   r"|\s+(?!\S)|\s+"],
    "qwen35": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + ENDS],
    "seed-coder": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+" + ENDS],
    "ufakzeka": [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + ENDS],
    "minicpm5": [r"\p{N}{1,3}", llama3(r"\p{N}+")],
    "laguna": [r"[^\n]+|[\n]+", QWEN2],
    "jais-2": [llama3(r"\p{N}{1,3}").replace(r"|\s+(?!\S)|\s+", "") +
               "".join(r"|\s{%d}(?!\S)" % 2**i for i in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"],
    "exaone-moe": [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}"
                   r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"],
    "tekken": [cased(r"\p{N}", "")],
    "gpt-4o": [cased(r"\p{N}{1,3}")],
    "tiny_aya": [r"\d{1,3}(?=(?:\d{3})*\b)", cased(r"\p{N}{1,3}")],
    "youtu": ["[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c"
              "\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|" + HAN_KANA, cased(r"\p{N}")],
    "kimi-k2": [r"[\p{Han}]+|" + cased(r"\p{N}{1,3}", behind=r"[\r\n]*", no=r"&&[^\p{Han}]")],
    "deepseek-llm": [r"[\r\n]", r"\s?[" + CASED_LETTERS + "]+", LISTED, r"\s+$", EAST_ASIAN,
                     r"\p{N}"],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", EAST_ASIAN, r"\p{N}"],
    "deepseek-v3": [r"\p{N}{1,3}", HAN_KANA, V3 + r"[\r\n]*" + ENDS],
    "spark2_5": [r"\p{N}{1,3}", HAN_KANA, V3 + r"|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"],
    "falcon": [PUNCTUATION_STEP, GPT2, "[0-9][0-9][0-9]"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
    "superbpe": [r"\p{N}+", r"(?=(\d{3})+(?!\d))"],
    "bloom": [BLOOM],
    "viking": [BLOOM, r"\p{N}"],
}

WORDS = ("the Quick brown FOX iPhone HTTPServer camelCaseWord it's WE'LL don't x86_64 naïve Ελλάδα ΑΒΓδ we'Re it'ſ "
         "Москва ПРИВЕТ 中文字 日本語テスト 한국어 ไทย हिन्दी العربية עברית ǅungla ʰpa aʰB 中AB中 Ⅷ ½ 1234567 12345 1000000 "
         "https://example.com/a/b?c=D /usr/local/ C++ // /* */ <unk> [INST] $5.99 100% @you #tag a.b.C 〇一二 ⺀⺁ 々 ㄅㄆ "
         "l'été (foo) _bar 3.14 2024-01-02 v1.2.3 12:34 ٣٤٥٦ 𝟙𝟚𝟛𝟜 x12345y 12345_ ㆎㄱ …“q” ẞß").split()
SPACES = [" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\n/", "\u00a0", "\u3000", "\u2028", "\u0085",
          "\x1c", "\u200b", "       ", "\n\n\n  ", " \u3000 "]
PUNCTUATION = list("!?.,;:'\"()[]{}<>/\\|-_=+*&^%$#@~`") + ["…", "—", "“", "”", "€", "😀", "🏳️‍🌈", "\u0301", "\u20dd",
                                                           "\x00", "\x7f", "\u00ad", "\ue000", "\u0378", "。", "，", "！"]
RUNS = ["A", "B", "a", "b", "ǅ", "ʰ", "中", "\u0301", "\u0903", " ", " ", "'", "/", "\n", "\r", "1", "2", "½", ".", "$", "\x01",
        "\u3000", "ー", "가", "s", "ll", "é", "<", "ſ", "\u2e80", "〇"]


def letters():
    """Some of each category, from all planes."""
    by = {}
    for c in range(0x110000):
        category = unicodedataplus.category(chr(c))
        if category != "Cs":
            by.setdefault(category, []).append(chr(c))
    return by


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
        alphabet = rng.sample(RUNS, rng.randint(2, 12))
        parts = [rng.choice(alphabet) for _ in range(rng.randint(1, 24))]
    else:
        for _ in range(rng.randint(1, 16)):
            parts.append(rng.choice((rng.choice(WORDS), rng.choice(PUNCTUATION), rng.choice(SPACES),
                                     rng.choice(by[rng.choice(list(by))]))))
    if rng.randrange(16) == 0:
        parts.insert(rng.randint(0, len(parts)), rng.choice((" ", "\t", "\n")) * rng.randint(1, 700))
    return "".join(parts)


def for_regex(expression):
    """In the syntax of the `regex` package: \\s is the property, and a border of words behind a digit is
    where none of the other engine's \\w comes, which has the numbers of Latin-1 too."""
    expression = expression.replace(r"\b", r"(?![\w\u00b2\u00b3\u00b9\u00bc-\u00be])")
    return regex.compile("(?V1)" + expression.replace(r"\S", r"\P{White_Space}").replace(r"\s", r"\p{White_Space}"))


def split_by_regex(patterns, text):
    pieces = [text]
    for pattern in patterns:
        smaller = []
        for piece in pieces:
            at = 0
            for match in pattern.finditer(piece):
                smaller += [piece[at:match.start()], match.group()]
                at = match.end()
            smaller.append(piece[at:])
        pieces = [piece for piece in smaller if piece]
    return pieces


def newer(by_package={}):
    """Characters that the regex package puts into another category than Unicode 16 does."""
    if not by_package:
        by_package["all"] = {chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000 and
                             not regex.match(r"\p{%s}" % unicodedataplus.category(chr(c)), chr(c))}
    return by_package["all"]


def punctuation_of_unicode_8():
    """As an expression: what the step takes out, character by character."""
    takes = Punctuation("removed")
    return "[" + "".join("\\U%08x" % c for c in range(0x110000)
                         if not 0xD800 <= c < 0xE000 and not takes.pre_tokenize_str(chr(c))) + "]+"


def splitter(name, engine):
    if engine == "regex" or name == "kimi-k2":
        patterns = [for_regex(e or punctuation_of_unicode_8()) for e in FAMILIES[name]]
        return lambda text: split_by_regex(patterns, text)
    steps = Sequence([Split(Regex(e), "isolated") if e else Punctuation("contiguous") for e in FAMILIES[name]])

    def words(text):
        return [text[begin:end] for _, (begin, end) in steps.pre_tokenize_str(text)]
    return words


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=700)
    parser.add_argument("--seed", type=int, default=14)
    parser.add_argument("--engine", choices=("tokenizers", "regex"), default="tokenizers")
    options = parser.parse_args()
    rng, by = random.Random(options.seed), letters()
    splitters = [splitter(name, options.engine) for name in FAMILIES]
    print(json.dumps(list(FAMILIES)))
    n = 0
    while n < options.n:
        text = text_of(rng, by)
        if not newer().isdisjoint(text):
            continue
        rows, last = [], None
        for words_of in splitters:
            row = [len(word.encode()) for word in words_of(text)]
            rows.append([] if row == last else row)
            last = row
        json.dump({"text": text, "words": rows}, sys.stdout, ensure_ascii=False, separators=(",", ":"))
        sys.stdout.write("\n")
        n += 1


if __name__ == "__main__":
    main()
