#!/usr/bin/env bash
# Builds Horovod against the locked torch into .cache/horovod-env; the wheel is kept in .cache/horovod-wheels.
# The first time takes 3 to 6 minutes of one core. Needs g++, cmake and Open MPI (tools/apt.sh), and `make setup`.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf 'horovod: %s\n' "$*"; }
version=0.28.1
uv=.venv/bin/uv
env="$PWD/.cache/horovod-env"
torch=$(sed -n 's/^torch==\([^ ]*\).*/\1/p' requirements.lock)
tag=$(.venv/bin/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
wheels=".cache/horovod-wheels/torch-$torch"
stamp="$env/.ready-horovod-$version-torch-$torch-$tag"
[ ! -e "$stamp" ] || exit 0
mkdir -p .cache
# Two tests may want it at once.
exec 9>.cache/horovod-env.lock
flock 9
[ ! -e "$stamp" ] || exit 0

for tool in g++ cmake mpirun; do
  command -v "$tool" >/dev/null || { say "$tool is missing; on Debian: apt-get install g++ cmake, and tools/apt.sh"; exit 2; }
done
started=$SECONDS
rm -rf "$env"
say "making .cache/horovod-env with torch $torch"
.venv/bin/python -m venv "$env"
# setuptools 81 no longer has pkg_resources, which Horovod's build imports.
"$uv" pip install -q --compile-bytecode --python "$env/bin/python" -c requirements.lock torch numpy scikit-learn
"$uv" pip install -q --compile-bytecode --python "$env/bin/python" \
  "setuptools<81" wheel cloudpickle psutil pyyaml packaging cffi

if ! ls "$wheels"/horovod-"$version"-"$tag"-*.whl >/dev/null 2>&1; then
  say "building the wheel: some minutes, log in .cache/horovod-build.log"
  # Horovod asks for C++14 and torch's headers for a newer one; the compiler is told so behind its back.
  wrapper="$PWD/.cache/horovod-cxx"
  cat >"$wrapper" <<'WRAPPER'
#!/usr/bin/env bash
words=()
for word in "$@"; do
  case $word in -std=gnu++1? | -std=c++1?) word=-std=gnu++20 ;; esac
  words+=("$word")
done
exec g++ "${words[@]}"
WRAPPER
  chmod +x "$wrapper"
  mkdir -p "$wheels"
  PATH="$env/bin:$PATH" CXX="$wrapper" MAKEFLAGS="${MAKEFLAGS_HOROVOD:--j1}" \
    HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 HOROVOD_WITHOUT_MXNET=1 \
    nice -n 10 "$env/bin/python" -m pip wheel -q --no-deps --no-build-isolation --no-binary :all: \
    --wheel-dir "$wheels" "horovod==$version" >.cache/horovod-build.log 2>&1 || {
    say "the build failed; the end of .cache/horovod-build.log:"
    tail -n 30 .cache/horovod-build.log
    exit 1
  }
fi
"$uv" pip install -q --compile-bytecode --no-deps --python "$env/bin/python" "$wheels"/horovod-"$version"-"$tag"-*.whl
"$env/bin/python" -c 'import horovod.torch; assert horovod.torch.mpi_built()'
touch "$stamp"
say "done in $((SECONDS - started)) s: .cache/horovod-env/bin/python"
