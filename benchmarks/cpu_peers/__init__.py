"""Milepost on a CPU beside what people would otherwise run there: llama.cpp, transformers, vLLM.

    models          the subjects, the same weights in every engine's files
    workers         one process an engine, driven by lines of JSON; one runs, the others are stopped
    *_worker        what those processes do, one module an engine
    alternating     rounds in which every side has its turn, and the ratios of each round
    step_bytes      what a decode step must read and write
    engines         the commands on engines: models, decode, prefill
    client          a streaming client that both servers answer
    server_process  servers, of which only the one that is asked runs
    servers         the commands on servers: served, reuse, start
    control         the command on control planes

The peers live in an environment of their own, which ``sh benchmarks/cpu_peers/install.sh`` makes.
What runs there imports nothing of Milepost.
"""
