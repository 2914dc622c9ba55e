"""peer - llguidance or xgrammar, as bench_masks: cases come in on stdin, one line of results each goes out.

    python peer.py llguidance|xgrammar TOKENIZER.json PIECES REPEAT [--cpu-time]

Time is that of the one call that computes a mask into memory that is there already, and of the one that takes a token.
llguidance runs with its defaults, which allow any white space; a second instance begins with reset(), which keeps what
its lexer has learnt.  xgrammar allows any white space and is not `strict`, which would forbid properties that the
schema allows; its results are compiled anew for each schema."""

import json
import os
import struct
import sys
from time import perf_counter_ns, thread_time_ns

os.environ["RAYON_NUM_THREADS"] = "1"


def read_pieces(path):
    data = open(path, "rb").read()
    n, n_ends = struct.unpack_from("=II", data, 8)
    ends, at, pieces = struct.unpack_from(f"={n_ends}I", data, 16), 16 + 4 * n_ends, []
    for _ in range(n):
        size = struct.unpack_from("=I", data, at)[0]
        pieces.append(data[at + 4:at + 4 + size])
        at += 4 + size
    return pieces, list(ends)


class Llguidance:
    def __init__(self, tokenizer, pieces, ends):
        import llguidance
        import numpy

        self.module = llguidance
        self.tokenizer = llguidance.LLTokenizer(open(tokenizer).read(), n_vocab=len(pieces), eos_token=ends)
        for i, piece in enumerate(pieces):  # the same vocabulary, or the comparison is void
            if piece and piece[0] != 0xFF and self.tokenizer.decode_bytes([i]) != piece:  # 0xFF: its mark of specials
                raise SystemExit(f"peer: token {i} is {self.tokenizer.decode_bytes([i])}, not {piece}")
        self.mask = numpy.zeros((len(pieces) + 31) // 32, dtype=numpy.uint32)
        self.pointer, self.n_bytes = self.mask.ctypes.data, self.mask.nbytes

    def prepare(self, schema):
        return '{"grammars": [{"json_schema": ' + schema + "}]}"

    def compile(self, grammar):
        self.matcher = self.module.LLMatcher(self.tokenizer, grammar, log_level=0)
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())

    def begin(self):
        self.matcher.reset()

    def compute(self):
        self.matcher.unsafe_compute_mask_ptr(self.pointer, self.n_bytes)

    def take(self, token):
        return self.matcher.consume_token(token)

    def check(self):
        if self.matcher.is_error():
            raise ValueError(self.matcher.get_error())

    def may_end(self):
        return self.matcher.is_accepting()


class Xgrammar:
    def __init__(self, tokenizer, pieces, ends):
        import xgrammar

        self.module = xgrammar
        info = xgrammar.TokenizerInfo(pieces, xgrammar.VocabType.RAW, vocab_size=len(pieces), stop_token_ids=ends)
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.tensor = xgrammar.allocate_token_bitmask(1, len(pieces))
        self.mask = self.tensor.numpy().view("uint32")[0]
        self.ends = ends

    def prepare(self, schema):
        return schema

    def compile(self, schema):
        self.compiled = self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)

    def begin(self):
        self.matcher = self.module.GrammarMatcher(self.compiled)

    def compute(self):
        if not self.matcher.fill_next_token_bitmask(self.tensor):
            self.mask.fill(0xFFFFFFFF)  # it says that nothing is forbidden, and leaves the memory as it is

    def take(self, token):
        return self.matcher.accept_token(token)

    def check(self):
        pass

    def may_end(self):
        if self.matcher.is_terminated():
            return True
        self.compute()
        return any(self.mask[i // 32] >> (i % 32) & 1 for i in self.ends)


def walk(peer, tokens, masks, takes):
    """-1: accepted as a whole; else the number of tokens that were."""
    peer.begin()
    mask, compute, take, now = peer.mask, peer.compute, peer.take, now_ns
    for i, token in enumerate(tokens):
        t0 = now()
        compute()
        t1 = now()
        masks.append(t1 - t0)
        if not int(mask[token >> 5]) >> (token & 31) & 1:
            peer.check()
            return i
        t0 = now()
        taken = take(token)
        t1 = now()
        takes.append(t1 - t0)
        if not taken:
            peer.check()
            raise ValueError("a token of the mask is not accepted")
    return -1 if peer.may_end() else len(tokens)


def judge(case, ends):
    """The first test that is wrong decides, a false accept before a false reject."""
    accepts = [i for i, t in enumerate(case["tests"]) if not t["valid"] and ends[i] == -1]
    rejects = [i for i, t in enumerate(case["tests"]) if t["valid"] and ends[i] != -1]
    status = "false_accept" if accepts else "false_reject" if rejects else "passed"
    wrong = (accepts or rejects or [None])[0]
    return {"status": status} | ({} if wrong is None else {"test": wrong, "at": ends[wrong]})


now_ns = perf_counter_ns


def one_pass(peer, case, last):
    """A cold pass, and after the last one a warm one."""
    grammar = peer.prepare(case["schema"])
    t0 = now_ns()
    try:
        peer.compile(grammar)
    except Exception as e:
        return {"id": case["id"], "status": "refused", "compile_ns": now_ns() - t0, "error": str(e)}
    result = {"id": case["id"], "compile_ns": now_ns() - t0, "cold": [], "warm": [], "accept": []}
    try:
        ends = [walk(peer, t["tokens"], result["cold"], result["accept"]) for t in case["tests"]]
        result |= judge(case, ends)
        for t in case["tests"] if last else ():
            walk(peer, t["tokens"], result["warm"], [])
    except Exception as e:  # a limit, met on the way
        result |= {"status": "false_reject", "error": str(e)}
    return result


def run(peer, case, repeat):
    result = one_pass(peer, case, repeat == 1)
    for i in range(1, repeat):
        again = one_pass(peer, case, i + 1 == repeat)
        again["compile_ns"] = min(result["compile_ns"], again["compile_ns"])
        for name in ("cold", "accept"):
            if name in again:
                again[name] = list(map(min, zip(result[name], again[name])))
        result = again
    return result


def main():
    global now_ns
    kind, tokenizer, pieces, repeat = sys.argv[1:5]
    if "--cpu-time" in sys.argv:
        now_ns = thread_time_ns
    peer = {"llguidance": Llguidance, "xgrammar": Xgrammar}[kind](tokenizer, *read_pieces(pieces))
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(run(peer, json.loads(line), int(repeat))), flush=True)


if __name__ == "__main__":
    main()
