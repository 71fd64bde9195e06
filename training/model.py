"""The small Kimi K3 as a torch module whose parameter names are the checkpoint's tensor names."""

from torch import Tensor, nn

from training.attention import GatedMLA, KimiDeltaAttention
from training.config import ToyConfig
from training.layers import GatedMLP, LatentMoE, Linear, RMSNorm, Router, ScoreRow, residual_read


class DecoderLayer(nn.Module):
    """Attention and feed-forward, each reading from the bank of residual blocks."""

    def __init__(self, config: ToyConfig, index: int) -> None:
        super().__init__()
        self.opens_block = index % config.attn_res_block_size == 0
        dim, eps = config.hidden_size, config.rms_norm_eps
        self.self_attention_res_norm, self.mlp_res_norm = RMSNorm(dim, eps), RMSNorm(dim, eps)
        self.self_attention_res_proj, self.mlp_res_proj = ScoreRow(dim), ScoreRow(dim)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(dim, eps), RMSNorm(dim, eps)
        full = config.is_full_attention(index)
        self.self_attn: nn.Module = GatedMLA(config) if full else KimiDeltaAttention(config)
        if index == 0:
            self.mlp: nn.Module = GatedMLP(config, config.intermediate_size)
        else:
            self.block_sparse_moe: nn.Module = LatentMoE(config)

    def forward(self, running: Tensor, bank: list[Tensor]) -> Tensor:
        """Advance the running sum [B, T, D]; a layer that opens a block banks it first and starts it anew."""
        x = residual_read([*bank, running], self.self_attention_res_norm, self.self_attention_res_proj)
        attended: Tensor = self.self_attn(self.input_layernorm(x))
        if self.opens_block:
            bank.append(running)
            running = attended
        else:
            running = running + attended
        x = residual_read([*bank, running], self.mlp_res_norm, self.mlp_res_proj)
        feed_forward = self.mlp if hasattr(self, "mlp") else self.block_sparse_moe
        out: Tensor = running + feed_forward(self.post_attention_layernorm(x))
        return out


class Decoder(nn.Module):
    """Embedding, layers, the last residual read and the final norm."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        nn.init.normal_(self.embed_tokens.weight, std=0.5)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.output_attn_res_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.output_attn_res_proj = ScoreRow(config.hidden_size)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, T] ids -> [B, T, D] normed hidden states."""
        running: Tensor = self.embed_tokens(tokens)
        bank: list[Tensor] = []
        for layer in self.layers:
            running = layer(running, bank)
        mixed = residual_read([*bank, running], self.output_attn_res_norm, self.output_attn_res_proj)
        out: Tensor = self.norm(mixed)
        return out


class LanguageModel(nn.Module):
    """Decoder and an untied output head."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.model = Decoder(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size)


class KimiK3ForConditionalGeneration(nn.Module):
    """The text half of Kimi K3; only the nesting of its modules differs from a plain decoder."""

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.language_model = LanguageModel(config)

    def forward(self, tokens: Tensor, keep: Tensor | None = None) -> Tensor:
        """[B, T] ids -> [B, T, V] logits, or [N, V] for the N positions of the mask ``keep`` [B, T]."""
        hidden = self.language_model.model(tokens)
        logits: Tensor = self.language_model.lm_head(hidden if keep is None else hidden[keep])
        return logits

    def balance_experts(self, speed: float) -> None:
        """Adjust every router's bias by the load seen since the last call."""
        for module in self.modules():
            if isinstance(module, Router):
                module.balance(speed)

    def set_quantised(self, quantised: bool) -> None:
        """Choose whether experts multiply by their MXFP4 values or by the raw ones."""
        for module in self.modules():
            if isinstance(module, LatentMoE):
                module.quantised = quantised
