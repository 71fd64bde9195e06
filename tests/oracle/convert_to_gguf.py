"""Runs llama.cpp's own converter on a toy checkpoint, as a process: SOURCE CHECKPOINT GGUF.

SOURCE is llama.cpp's source tree, from llama-cpp-python's source distribution. One thing is left out: the
vocabulary. The converter knows a tokenizer by the hash of what it does to a sample text, which no toy
tokenizer matches; logits need no vocabulary, so the file says that it has none.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def main(source: Path, checkpoint: Path, gguf: Path) -> None:
    sys.path.insert(0, str(source / "gguf-py"))
    sys.path.insert(0, str(source))
    from conversion.kimi_k3 import KimiK3Model
    from conversion.kimi_linear import KimiLinearModel

    for model in (KimiK3Model, KimiLinearModel):
        model.set_vocab = model._set_vocab_none
    sys.argv = ["convert", "--outtype", "f32", "--outfile", str(gguf), str(checkpoint)]
    runpy.run_path(str(source / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
