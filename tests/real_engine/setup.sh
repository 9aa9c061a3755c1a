#!/usr/bin/env bash
# Installs an unmodified SGLang 0.5.23 that runs on a CPU without AVX-512, for the tests against a real engine.
#
#   tests/real_engine/setup.sh DIR        then:
#   GREENROOM_SGLANG_PYTHON=DIR/venv/bin/python cargo test -p greenroom-engine --test real_engine
#
# Needs Python 3.11 and about 7 GB of disk: the torch of PyPI brings its CUDA libraries along, unused. Nothing of SGLang
# is changed. Only its compiled kernels (package sgl_kernel, CUDA builds) are replaced by a module whose names can be
# imported and raise when called, so that SGLang takes its own PyTorch code.
set -euo pipefail

directory=$(realpath -m "${1:?usage: setup.sh DIR}")
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
unset PYTHONDONTWRITEBYTECODE # without byte code on disk every start costs a minute
export UV_HTTP_TIMEOUT=300

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
  echo "setup.sh: $python is not Python 3.11; name one with PYTHON=" >&2
  exit 1
}
mkdir -p "$directory"
[ -x "$directory/venv/bin/python" ] || "$python" -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet uv
export VIRTUAL_ENV=$directory/venv
"$directory/venv/bin/uv" pip install --quiet --requirement "$here/requirements.txt"
"$directory/venv/bin/uv" pip install --quiet --no-deps sglang==0.5.23

packages=$("$directory/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$packages/sgl_kernel"
cat > "$packages/sgl_kernel/__init__.py" <<'PY'
"""Stands in for SGLang's compiled kernels: every name can be imported and raises when it is called."""

__version__ = "0"


def _absent(name):
    def kernel(*_arguments, **_named):
        raise NotImplementedError(f"sgl_kernel.{name} is not installed")

    return kernel


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _absent(name)
PY
"$directory/venv/bin/python" -m compileall -q -j 2 "$packages/sglang/srt" "$packages/torch" "$packages/transformers" \
  > /dev/null 2>&1 || true
echo "GREENROOM_SGLANG_PYTHON=$directory/venv/bin/python"
