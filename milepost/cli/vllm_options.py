"""What ``milepost serve`` says to options of vLLM that have another name here, or no counterpart.

Names are those of ``vllm serve`` (https://docs.vllm.ai/en/stable/cli/serve). Options with the same name and
meaning in both, such as ``--max-model-len``, need no entry.
"""

from __future__ import annotations

__all__ = ["VLLM_OPTIONS", "of_vllm"]

_ONE_PROCESS = "A server is one process on processors: leave it out."
_TOOLS = (
    "Kimi K3's and Kimi-Linear's tools and thinking are read without: leave it out; "
    "for a --chat-template, say --reply-parser."
)
_REQUEST_LOG = "Say --log-level info for a line a request, and --log-prompts for what is in it."

VLLM_OPTIONS = {
    "--model": "The checkpoint's folder stands alone: milepost serve path/to/checkpoint.",
    "--api-key": "Give a file of keys (--api-keys), or the key in $MILEPOST_API_KEYS.",
    "--gpu-memory-utilization": "Say --memory SIZE, the bytes for states and KV; weights come on top.",
    "--kv-cache-memory-bytes": "Say --memory SIZE.",
    "--tensor-parallel-size": _ONE_PROCESS,
    "--pipeline-parallel-size": _ONE_PROCESS,
    "--data-parallel-size": _ONE_PROCESS,
    "--enable-expert-parallel": _ONE_PROCESS,
    "--enable-prefix-caching": "It is on; --no-prefix-cache turns it off.",
    "--no-enable-prefix-caching": "Say --no-prefix-cache.",
    "--enable-chunked-prefill": "It is always on: leave it out.",
    "--kv-offloading-size": "Say --host-cache SIZE, and --disk-cache PATH,SIZE for what survives a restart.",
    "--kv-cache-dtype": "Say --kv-dtype.",
    "--quantization": "Say --weights; experts that come packed stay packed.",
    "--trust-remote-code": "No code of a checkpoint is ever run: leave it out.",
    "--ssl-certfile": "Say --tls-cert.",
    "--ssl-keyfile": "Say --tls-key.",
    "--allowed-origins": "Say --cors-origin, once for each.",
    "--enable-auto-tool-choice": _TOOLS,
    "--tool-call-parser": _TOOLS,
    "--reasoning-parser": _TOOLS,
    "--uvicorn-log-level": "Say --log-level.",
    "--enable-log-requests": _REQUEST_LOG,
    "--disable-log-requests": _REQUEST_LOG,
    "--otlp-traces-endpoint": "Say --otlp-endpoint.",
}
"""What to do instead of each."""


def of_vllm(option: str) -> str | None:
    """What to say to an option of vLLM; None if it is none of the listed."""
    advice = VLLM_OPTIONS.get(option.replace("_", "-"))
    return None if advice is None else f"'{option}' is vLLM's. {advice}"
