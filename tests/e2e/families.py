"""The small models of all families as files, and what transformers says about them (tests/families/*.golden)."""

import dataclasses
import functools
import subprocess

import numpy as np

from conftest import BUILD, ROOT, SANITIZE

FOLDER = ROOT / "tests/families"
SURE = 1e-3  # the gap of the two largest logits, in their rms, from which on greedy tokens must be equal


@dataclasses.dataclass
class Golden:
    head: str
    seed: int
    context: int  # served; 0: that of the file
    tokens: list  # of the longest prompt; the others are its beginnings
    logits: dict  # by length of the prompt: of its last position
    greedy: dict  # by length of the prompt: (token, gap)


@functools.cache
def golden(name):
    text, data = (FOLDER / f"{name}.golden").read_bytes().split(b"\n\n", 1)
    about, greedy, length = {}, {}, 0
    for line in text.decode().splitlines():
        word, rest = line.split(" ", 1)
        if word == "prompt":
            length = int(rest.split()[0])
        elif word == "greedy":
            greedy[length] = [(int(token), float(gap)) for token, gap in (pair.split(":") for pair in rest.split())]
        else:
            about[word] = rest
    n, n_vocab = max(greedy), int(about["vocab"])
    rows = np.frombuffer(data, "<f4", offset=2 * n).reshape(len(greedy), n_vocab)
    return Golden(about["head"], int(about["seed"]), int(about["context"]), np.frombuffer(data, "<u2", n).tolist(),
                  dict(zip(greedy, rows)), greedy)


def names():
    """All families; with a sanitizer, which is slow, one mixture with windows and sinks."""
    return ["gpt-oss"] if SANITIZE else sorted(f.stem for f in FOLDER.glob("*.golden"))


def write(name, folder):
    """The model's file; one that is there already has the same bytes."""
    g = golden(name)
    path = folder / f"{g.head}.gguf"
    if not path.exists():
        subprocess.run([BUILD / "tests/family_file", FOLDER / f"{g.head}.head", str(g.seed), path], check=True,
                       stdout=subprocess.DEVNULL)
    return path


def model(name, folder, **more):
    """Its entry in a configuration."""
    context = {"max_context": golden(name).context} if golden(name).context else {}
    return {"name": name, "path": str(write(name, folder)), **context, **more}
