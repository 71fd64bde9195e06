"""vLLM's own scheduler with its cache manager and no model, in the peers' environment: RUNNING CONTEXT STEPS.

Its KV groups are Kimi K3's on 8 ranks: 24 MLA layers in one group and 69 KDA layers in three of 23, blocks of
1,536 tokens, in which a state fits. Prefix caching is on, in the mode that keeps states at block borders.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import vllm
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256_cbor
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec, MLAAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from benchmarks.cpu_peers.protocol import serve_lines

__all__ = ["VllmWorker"]

BLOCK = 1536
BLOCKS = 400_000
ROW = 576
STATE_SHAPES = ((12, 128, 128), (3, 4608))
STATE_DTYPES = (torch.float32, torch.bfloat16)
VOCAB = 163_840

# It wants a model's description, of which scheduling takes the longest context alone.
DESCRIPTION = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "max_position_embeddings": 1 << 20,
    "vocab_size": VOCAB,
    "torch_dtype": "bfloat16",
}


class VllmWorker:
    """`running` requests that share `context` tokens and are in steady decode."""

    def __init__(self, running: int, context: int, steps: int) -> None:
        self._running = running
        init_none_hash(sha256_cbor)
        config = _config(running)
        self._scheduler = Scheduler(
            vllm_config=config,
            kv_cache_config=_cache(),
            structured_output_manager=StructuredOutputManager(config),
            block_size=BLOCK,
            hash_block_size=BLOCK,
            log_stats=False,
        )
        self._hasher = get_request_block_hasher(BLOCK, sha256_cbor)
        draw = random.Random(0)
        shared = _tokens(draw, context)
        self._add("leader", shared, 1)
        while self._scheduler.has_unfinished_requests():
            self._step()
        for i in range(running):
            # It lets in one request a step, so the first ones draw many tokens before all are there.
            self._add(f"r{i}", [*shared, *_tokens(draw, 1 + i % 64)], steps + 2 * running)
        while len(self._scheduler.running) < running or self._prefilling():
            self._step()
        # As its server does: the collector need not walk over what stays.
        gc.collect()
        gc.freeze()

    def about(self) -> dict[str, Any]:
        """Settings that a reader must know to compare."""
        return {"vllm": vllm.__version__, "block": BLOCK, "running": len(self._scheduler.running)}

    def steps(self, count: int) -> list[float]:
        """Seconds of `schedule` and `update_from_output` in each of so many steps."""
        seconds = []
        for _ in range(count):
            drawn = sum(request.num_output_tokens for request in self._scheduler.running)
            seconds.append(self._step())
            drawn -= sum(request.num_output_tokens for request in self._scheduler.running)
            if drawn != -self._running:
                raise RuntimeError(f"A step of {self._running} requests drew {-drawn} tokens")
        return seconds

    def _add(self, name: str, prompt: Sequence[int], max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        sampling.update_from_generation_config({}, VOCAB - 1)
        self._scheduler.add_request(
            Request(
                request_id=name,
                prompt_token_ids=list(prompt),
                sampling_params=sampling,
                pooling_params=None,
                block_hasher=self._hasher,
            )
        )

    def _prefilling(self) -> bool:
        return any(each.num_computed_tokens < each.num_prompt_tokens for each in self._scheduler.running)

    def _step(self) -> float:
        start = time.perf_counter()
        planned = self._scheduler.schedule()
        seconds = time.perf_counter() - start
        result = self._drawn(planned.num_scheduled_tokens)
        start = time.perf_counter()
        self._scheduler.update_from_output(planned, result)
        return seconds + time.perf_counter() - start

    def _drawn(self, scheduled: dict[str, int]) -> ModelRunnerOutput:
        """A token for each request whose prompt is computed."""
        requests = self._scheduler.requests
        names = list(scheduled)
        ready = [requests[name].num_computed_tokens >= requests[name].num_tokens for name in names]
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[index] if drawn else [] for index, drawn in enumerate(ready)],
        )


def _config(running: int) -> VllmConfig:
    # It looks at the description while it is made, and not after.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(DESCRIPTION))
        model = ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=1 << 20)
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=True, mamba_cache_mode="align")
    cache.num_gpu_blocks = BLOCKS
    scheduler = SchedulerConfig(
        max_num_seqs=running,
        max_num_batched_tokens=1 << 21,
        max_model_len=1 << 20,
        is_encoder_decoder=False,
        enable_chunked_prefill=True,
    )
    return VllmConfig(model_config=model, cache_config=cache, scheduler_config=scheduler)


def _cache() -> KVCacheConfig:
    attention = MLAAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=ROW, dtype=torch.bfloat16)
    recurrent = MambaSpec(
        block_size=BLOCK,
        shapes=STATE_SHAPES,
        dtypes=STATE_DTYPES,
        page_size_padded=attention.page_size_bytes,
        mamba_cache_mode="align",
    )
    groups = [KVCacheGroupSpec([f"mla{i}" for i in range(24)], attention)]
    groups += [KVCacheGroupSpec([f"kda{group}.{i}" for i in range(23)], recurrent) for group in range(3)]
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(VOCAB) for _ in range(count)]


if __name__ == "__main__":
    serve_lines(lambda: VllmWorker(*(int(argument) for argument in sys.argv[1:4])))
