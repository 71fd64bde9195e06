#!/bin/sh
# Makes .venv-oracle with the peers that the oracle tests compare with, and unpacks llama.cpp's converter under
# build/oracle. Builds llama.cpp: some 12 minutes of one core. Usage: sh tests/oracle/install.sh [PYTHON]
set -eu
cd "$(dirname "$0")/../.."
"${1:-python3}" -m venv .venv-oracle
pip=".venv-oracle/bin/python -m pip"
# First and alone: whatever asks for torch later may fetch another, much larger build.
$pip install "$(grep '^torch==' constraints.txt)"
$pip install --constraint constraints.txt --editable '.[engine]'
CMAKE_ARGS="${CMAKE_ARGS:--DLLAVA_BUILD=OFF}" $pip install --constraint constraints.txt -r tests/oracle/requirements.txt
mkdir -p build/oracle
$pip download --no-deps --no-binary :all: --dest build/oracle llama-cpp-python==0.3.36
tar -xzf build/oracle/llama_cpp_python-0.3.36.tar.gz -C build/oracle
echo "Run: OMP_NUM_THREADS=1 .venv-oracle/bin/python -m pytest -m oracle tests/oracle"
