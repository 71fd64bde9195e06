"""Many clients that come, ask for anything and leave as they like, against `milepost serve` as a process.

traffic     random requests, from a seed: what may be asked, and when the client leaves
wire        a small HTTP client over asyncio's streams, strict about what it reads
clients     the process of the clients: asks until its time is over, prints a report as JSON
watched     the server's process: its address, its metrics, its memory
probes      requests whose text must be the same alone and under load
"""
