"""What the C++ extension offers; addresses are integers, strides are in elements."""

PANEL: int
GROUP_BYTES: int

class Float:
    f32: Float
    bf16: Float

class Format:
    f32: Format
    bf16: Format
    int8: Format
    mxfp4: Format

class Rows:
    def __init__(self, num_rows: int, num_tokens: int, cu_seqlens: int, starts: int) -> None: ...
    def assign(self, other: Rows) -> None: ...

class States:
    def __init__(
        self,
        recurrent: int,
        conv: int,
        conv_type: Float,
        tile_rows: int,
        head_dim: int,
        conv_tile_size: int,
        tiles_per_page: int,
        pages: int,
        table: int,
    ) -> None: ...
    def leave(self, count: int, rows: int, ends: int, table: int) -> None: ...
    def assign(self, other: States) -> None: ...

class Kv:
    def __init__(
        self,
        cache: int,
        type: Float,
        layers: int,
        block_size: int,
        row_dim: int,
        table: int,
        blocks: int,
        page_stride: int,
        layer_stride: int,
    ) -> None: ...
    def assign(self, other: Kv) -> None: ...

class Matrix:
    def __init__(
        self, format: Format, batch: int, outputs: int, inputs: int, data: int, scales: int
    ) -> None: ...

class Tape:
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def play(self) -> None: ...
    def __len__(self) -> int: ...

class Block: ...

class Workspace:
    num_bytes: int
    def empty(self, num_bytes: int) -> Block: ...

def set_num_threads(threads: int) -> None: ...
def num_threads() -> int: ...
def target() -> str: ...
def choose_target(target: str) -> bool: ...
def set_part(part: str) -> None: ...
def set_timing(on: bool) -> None: ...
def timers() -> list[tuple[str, str, int, float]]: ...
def linear(
    matrix: Matrix,
    x: int,
    x_stride: int,
    x_batch_stride: int,
    y: int,
    y_stride: int,
    y_batch_stride: int,
    rows: int,
    accumulate: bool,
) -> None: ...
def read_all(data: int, count: int, sum: int) -> None: ...
def multiply_add(rounds: int, flops: int, sum: int) -> None: ...
