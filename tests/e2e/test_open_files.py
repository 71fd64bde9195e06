"""A process without descriptors opens nothing more: what serves requests must be loaded by then."""

from __future__ import annotations

import subprocess
import sys

from tests.repository.paths import ROOT

# In a process of its own, where nothing has loaded what the engine would load with its first requests.
SCRIPT = """
import resource, sys
from milepost.llm import LLM
from milepost.types import Grammar, SamplingParams
from milepost.cli.shipped_model import shipped_model

llm = LLM(shipped_model(), memory="24MiB", threads=1)
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event in ("open", "import") else None)
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
kinds = [
    SamplingParams(temperature=0.0, max_tokens=3),
    SamplingParams(temperature=1.0, max_tokens=3, logprobs=2),
    SamplingParams(temperature=1.0, max_tokens=3, seed=1, top_k=5, top_p=0.9, min_p=0.01),
    SamplingParams(temperature=1.0, max_tokens=3, presence_penalty=0.5, repetition_penalty=1.1, stop=("x",)),
    SamplingParams(temperature=1.0, max_tokens=3, logit_bias={5: 1.0}, min_tokens=2),
    SamplingParams(temperature=1.0, max_tokens=3, grammar=Grammar(lark='start: "a" /b+/')),
]
prompts = ["the code for amber is 7412 " * 20] * 3
for kind in kinds:
    for reply in llm.generate(prompts, kind):
        assert reply.finish_reason.value in ("stop", "length"), reply
print(sorted(set(map(str, opened))))
"""


def test_serving_opens_no_file_and_loads_no_module() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
