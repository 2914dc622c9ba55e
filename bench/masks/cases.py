"""cases - the schemas and instances of MaskBench, and vocabularies, as bench_masks and the peers read them.

A case is one schema with its instances, one line of JSON:

    {"id": name, "schema": text, "tests": [{"valid": true, "text": instance, "tokens": [ids]}, ...]}

The text of an instance is json.dumps(data, ensure_ascii=False), as MaskBench has it.  `tokens` are there where a
vocabulary is.

A file of pieces, in the byte order of the machine:

    "IFPIECES"  u32 n_vocab  u32 n_ends  u32 ends[n_ends]  n_vocab times: u32 n, n bytes

A token without bytes is never allowed: a control token, or an id that no token has."""

import json
import lzma
import struct
import subprocess
from pathlib import Path

FOLDER = "maskbench/data"


def git(repo, *argv, **more):
    return subprocess.run(["git", "-C", repo, *argv], check=True, capture_output=True, **more).stdout


def of_repository(repo, commit):
    """(name, bytes) of each file that is there, and the commit.  One blob of the set is missing upstream, so `git
    archive` and a checkout fail."""
    commit = git(repo, "rev-parse", commit).decode().strip()
    rows = [row.split("\t") for row in git(repo, "ls-tree", "-r", commit, FOLDER).decode().splitlines()]
    names = [row[1].rsplit("/", 1)[1] for row in rows]
    asked = "".join(row[0].split()[2] + "\n" for row in rows)
    said = git(repo, "cat-file", "--batch", input=asked.encode())
    files, at = [], 0
    for name in names:
        end = said.index(b"\n", at)
        what = said[at:end].split()
        at = end + 1
        if what[1] == b"missing":
            continue
        n = int(what[2])
        files.append((name, said[at:at + n]))
        at += n + 1
    return files, commit, len(names)


def read(path, commit="HEAD"):
    """The cases of a clone, a bare repository or a folder of the files, in the order of their names; and what they are:
    {"commit", "listed", "schemas", "instances", "valid"}."""
    path = Path(path)
    if any(path.glob("*.json")):
        files = [(f.name, f.read_bytes()) for f in path.glob("*.json")]
        commit, listed = None, len(files)
    else:
        files, commit, listed = of_repository(path, commit)
    found, about = [], {"commit": commit, "listed": listed, "schemas": len(files), "instances": 0, "valid": 0}
    for name, data in sorted(files):
        d = json.loads(data)
        tests = [{"valid": t["valid"], "text": json.dumps(t["data"], ensure_ascii=False)} for t in d["tests"]]
        about["instances"] += len(tests)
        about["valid"] += sum(t["valid"] for t in tests)
        found.append({"id": name.removesuffix(".json"), "schema": json.dumps(d["schema"]), "tests": tests})
    return found, about


def of_bytelevel():
    """The bytes that the characters of a byte-level vocabulary stand for."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(others)}


class Vocabulary:
    """Of a tokenizer.json, which may be compressed: pieces, ids of the end, and the tokens of a text."""

    def __init__(self, path):
        import tokenizers  # only here: pieces alone need nothing

        data = Path(path).read_bytes()
        self.json = (lzma.decompress(data) if str(path).endswith(".xz") else data).decode()
        self.name = Path(path).name.split(".tokenizer")[0]
        self.tokenizer = tokenizers.Tokenizer.from_str(self.json)
        d = json.loads(self.json)
        added = {t["id"]: t for t in d["added_tokens"]}
        vocab = d["model"]["vocab"]
        self.pieces = [b""] * (1 + max([*vocab.values(), *added]))
        self.specials = {i for i, t in added.items() if t["special"]}
        piece = self.bytes_of_spm if d["model"].get("byte_fallback") else self.bytes_of_level(of_bytelevel())
        for text, i in vocab.items():
            self.pieces[i] = piece(text)
        for i, t in added.items():
            self.pieces[i] = b"" if t["special"] else t["content"].replace("▁", " ").encode()
        names = ("<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "<|im_end|>", "<|endoftext|>", "</s>")
        self.ends = sorted(i for i in self.specials if added[i]["content"] in names)

    @staticmethod
    def bytes_of_level(table):
        return lambda text: bytes(table[c] for c in text)

    @staticmethod
    def bytes_of_spm(text):
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        return text.replace("▁", " ").encode()

    def write(self, path):
        with open(path, "wb") as f:
            f.write(b"IFPIECES" + struct.pack(f"=II{len(self.ends)}I", len(self.pieces), len(self.ends), *self.ends))
            for p in self.pieces:
                f.write(struct.pack("=I", len(p)) + p)

    def put_tokens(self, case):
        """Into the tests of a case.  The pieces of the tokens are the text, or the case would judge the tokenizer."""
        coded = self.tokenizer.encode_batch([t["text"] for t in case["tests"]], add_special_tokens=False)
        for test, code in zip(case["tests"], coded):
            if b"".join(self.pieces[i] for i in code.ids) != test["text"].encode():
                raise SystemExit(f"bench-masks: {case['id']}: the tokens of {self.name} are not the text")
            test["tokens"] = code.ids
