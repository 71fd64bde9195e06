"""What the C++ extension offers; addresses are integers, strides are in elements."""

PANEL: int
GROUP_BYTES: int
LEAST_BLOCK_ROWS: int
KDA_CHUNK: int
MOST_TAPS: int
QUERY_LANES: int
MOST_PARTS: int
MOST_SOURCES: int

class Float:
    f32: Float
    bf16: Float

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
    def leave(self, count: int, rows: int, ends: int, table: int, pages: int) -> None: ...
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

class Format:
    f32: Format
    bf16: Format
    int8: Format
    mxfp4: Format

class Matrix:
    def __init__(
        self, format: Format, batch: int, outputs: int, inputs: int, data: int, scales: int
    ) -> None: ...

class Tape:
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def play(self) -> None: ...
    def __len__(self) -> int: ...

class Workspace:
    num_bytes: int
    def empty(self, num_bytes: int) -> Block: ...
    def lend(self, address: int, num_bytes: int) -> Block: ...

class Block: ...

def set_num_threads(threads: int) -> None: ...
def num_threads() -> int: ...
def target() -> str: ...
def choose_target(target: str) -> bool: ...
def set_part(part: str) -> None: ...
def set_timing(on: bool) -> None: ...
def timers() -> list[tuple[str, str, int, float]]: ...
def finite_rows(
    x: int, type: Float, x_stride: int, tokens: int, dim: int, rows: Rows | None, finite: int
) -> None: ...
def finite_states(
    states: States,
    num_states: int,
    layers: int,
    recurrent_tiles: int,
    conv_tiles: int,
    tiles: int,
    window_size: int,
    finite: int,
) -> None: ...
def gated_activation(
    gate: int,
    gate_stride: int,
    up: int,
    up_stride: int,
    y: int,
    y_stride: int,
    rows: int,
    dim: int,
    situ: bool,
    gate_cap: float,
    up_cap: float,
) -> None: ...
def grouped_experts(
    w1: Matrix,
    w3: Matrix,
    w2: Matrix,
    x: int,
    x_stride: int,
    ids: int,
    weights: int,
    tokens: int,
    top_k: int,
    situ: bool,
    gate_cap: float,
    up_cap: float,
    out: int,
    out_stride: int,
    order: int,
    ends: int,
    blocks: int,
    hidden: int,
) -> None: ...
def short_conv(
    rows: Rows,
    states: States,
    first_tile: int,
    u: int,
    u_stride: int,
    weight: int,
    y: int,
    tokens: int,
    channels: int,
    taps: int,
) -> None: ...
def kda_gate(
    z: int,
    z_stride: int,
    b: int,
    b_stride: int,
    dt_bias: int,
    a_log: int,
    bounded: bool,
    lower_bound: float,
    g: int,
    beta: int,
    tokens: int,
    heads: int,
    dim: int,
) -> None: ...
def kda(
    rows: Rows,
    states: States,
    first_tile: int,
    heads: int,
    l2_eps: float,
    q: int,
    q_stride: int,
    k: int,
    k_stride: int,
    v: int,
    v_stride: int,
    g: int,
    g_stride: int,
    beta: int,
    beta_stride: int,
    o: int,
) -> None: ...
def gated_head_norm(
    o: int,
    o_stride: int,
    gate: int,
    gate_stride: int,
    weight: int,
    eps: float,
    y: int,
    tokens: int,
    heads: int,
    dim: int,
) -> None: ...
def read_all(data: int, count: int) -> None: ...
def multiply_registers(rounds: int, flops: int) -> None: ...
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
def mla_write(
    latent: int,
    latent_stride: int,
    k_pe: int,
    k_pe_stride: int,
    weight: int,
    lora: int,
    eps: float,
    kv: Kv,
    layer: int,
    rows: Rows,
) -> None: ...
def mla_attention(
    q: int,
    q_stride: int,
    k_b: Matrix,
    v_b: Matrix,
    gate: int,
    gate_stride: int,
    kv: Kv,
    layer: int,
    rows: Rows,
    out: int,
    absorbed_up_to: int,
    pass_tokens: int,
    latent: int,
    mixed: int,
    parts: int,
    num_parts: int,
) -> None: ...
def rms_norm(x: int, x_stride: int, weight: int, rows: int, dim: int, eps: float, out: int) -> None: ...
def attn_res(
    sources: list[int], site: int, weight: int, tokens: int, dim: int, eps: float, out: int
) -> None: ...
def pack_rows(matrix: Matrix, item: int, first: int, count: int, type: Float, rows: int) -> bool: ...
def pack_codes(matrix: Matrix, item: int, first: int, count: int, codes: int) -> None: ...
def pack_scales(matrix: Matrix, item: int, first: int, count: int, scales: int) -> None: ...
def route(
    gate: Matrix,
    bias: int,
    x: int,
    x_stride: int,
    tokens: int,
    top_k: int,
    renormalize: bool,
    scaling: float,
    scores: int,
    ids: int,
    weights: int,
) -> None: ...
def embedding(ids: int, table: int, type: Float, vocab: int, dim: int, tokens: int, out: int) -> None: ...
def take_rows(x: int, x_stride: int, index: int, rows: int, dim: int, out: int) -> None: ...
def add(x: int, x_stride: int, delta: int, delta_stride: int, rows: int, dim: int) -> None: ...
