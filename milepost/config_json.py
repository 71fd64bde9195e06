"""config.json of a checkpoint to `ModelSpec`: every field is read, known to be harmless, or refused.

Both families come in one vocabulary of fields (Hugging Face's ``KimiLinearConfig``): Kimi-Linear has
them at the top of config.json, Kimi K3 under ``text_config``. Three rules keep a foreign or newer
checkpoint from running with the wrong maths:

- a field that Milepost reads must be there, of its type and in its range;
- a field with only one value that Milepost implements (``FIXED``) must have it;
- any other field must be in `HARMLESS`, or null (the format's "off"), else it is an error.

All problems of a file are reported in one `CheckpointError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from milepost.error_text import as_json, listing
from milepost.errors import CheckpointError
from milepost.json_fields import JsonFields
from milepost.model_spec import Activation, KdaSpec, LayerKind, MlaSpec, ModelFamily, ModelSpec, MoeSpec

__all__ = ["HARMLESS", "MXFP4_GROUP", "parse_config", "read_model_spec"]

MXFP4_GROUP = 32  # inputs per E8M0 scale; the only group size of the MX formats
MLA_NORM_EPS = 1e-6  # the class default that both families' modelling code leaves in place

# Fields that never reach the maths of a forward pass: names, generation defaults of old
# transformers versions, training-only settings, and what NoPE (mla_use_nope) leaves unused.
_HARMLESS_NAMES = """
    _name_or_path architectures auto_map model_type torch_dtype dtype transformers_version
    tokenizer_class task_specific_params problem_type finetuning_task id2label label2id num_labels
    initializer_range use_cache use_bfloat16 torchscript return_dict output_attentions
    output_hidden_states output_router_logits output_scores return_dict_in_generate gradient_checkpointing
    attention_dropout hidden_dropout router_aux_loss_coef aux_loss_alpha seq_aux ep_size pretraining_tp
    head_dim rope_theta rope_scaling rope_parameters chunk_size_feed_forward tf_legacy_loss
    remove_invalid_values is_decoder tie_encoder_decoder prefix
    max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty
    temperature top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size
    encoder_no_repeat_ngram_size bad_words_ids num_return_sequences forced_bos_token_id
    forced_eos_token_id suppress_tokens begin_suppress_tokens exponential_decay_length_penalty
    decoder_start_token_id sep_token_id unk_token_id ignore_index
    image_placeholder media_placeholder_token_id vision_config
    """
HARMLESS = frozenset(_HARMLESS_NAMES.split())

# Fields of which Milepost implements one value only; absent means that value.
FIXED: dict[str, tuple[object, ...]] = {
    "moe_layer_freq": (1,),
    "moe_router_activation_func": ("sigmoid",),
    "topk_method": ("noaux_tc",),
    "num_expert_group": (1,),
    "n_group": (1,),
    "topk_group": (1,),
    "use_grouped_topk": (True, False),  # with one group both mean plain top-k
    "num_nextn_predict_layers": (0,),
    "tie_word_embeddings": (False,),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
}
FIXED_QUANTIZATION: dict[str, tuple[object, ...]] = {
    "quant_method": ("compressed-tensors",),
    "format": ("mxfp4-pack-quantized",),
}
FIXED_GROUP: dict[str, tuple[object, ...]] = {
    "format": ("mxfp4-pack-quantized",),
    "targets": (["Linear"],),
}
FIXED_GROUP_WEIGHTS: dict[str, tuple[object, ...]] = {
    "num_bits": (4,),
    "type": ("float",),
    "strategy": ("group",),
    "symmetric": (True,),
    "dynamic": (False,),
    "scale_dtype": ("torch.uint8",),
}
HARMLESS_QUANTIZATION = frozenset({"ignore", "quantization_status", "version", "global_compression_ratio"})
HARMLESS_GROUP = frozenset({"input_activations"})  # a serving choice; Milepost keeps activations unquantised
HARMLESS_GROUP_WEIGHTS = frozenset({"observer", "observer_kwargs"})


def read_model_spec(folder: Path) -> ModelSpec:
    """Read the model spec of a checkpoint folder.

    Reads config.json, and generation_config.json where there is one (its eos tokens also end a reply).

    Raises:
        CheckpointError: no such folder or file, broken JSON, or a config that Milepost can't run
            (all problems of config.json in one message).
    """
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise CheckpointError(
            f"The checkpoint must be a folder with a config.json. Given: {folder}, which {what}."
        )
    config = _read_json(folder / "config.json")
    generation_path = folder / "generation_config.json"
    generation = _read_json(generation_path) if generation_path.exists() else {}
    return parse_config(config, generation_eos=generation.get("eos_token_id"), source=folder / "config.json")


def parse_config(
    config: Mapping[str, Any], *, generation_eos: object = None, source: Path | str = "config.json"
) -> ModelSpec:
    """Turn the decoded config.json into a `ModelSpec`.

    Args:
        config: the decoded file.
        generation_eos: ``eos_token_id`` of generation_config.json: an id, a list of ids or None.
        source: what messages call the file.

    Raises:
        CheckpointError: fields are missing, of the wrong type or value, or unknown; one message
            lists them all (the first 20 and a count).
    """
    problems: list[str] = []
    top = JsonFields(config, "", problems)
    nested = config.get("text_config") is not None or config.get("model_type") == ModelFamily.KIMI_K3.value
    text = top.section("text_config") if nested else top
    family = _family(top, nested)
    spec = _read_spec(family, top, text, generation_eos, problems)
    if text is not top:
        text.finish(HARMLESS, FIXED)
    top.finish(HARMLESS, FIXED)
    if spec is None or problems:
        raise CheckpointError(_report(source, problems))
    return spec


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"The checkpoint has no {path.name}. Looked for: {path}.") from None
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}. Download or export it again.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object. Given: {type(content).__name__}.")
    return content


def _report(source: Path | str, problems: list[str]) -> str:
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return f"{source} can't be used ({count}):{listing(problems)}"


def _family(top: JsonFields, nested: bool) -> ModelFamily:
    name = top.choice("model_type", [family.value for family in ModelFamily])
    if nested and name != ModelFamily.KIMI_K3.value:
        top.problem("text_config", f"belongs to model_type 'kimi_k3'. Given: {name!r}")
    return ModelFamily(name)


def _read_spec(
    family: ModelFamily, top: JsonFields, text: JsonFields, generation_eos: object, problems: list[str]
) -> ModelSpec | None:
    linear = text.section("linear_attn_config")
    layers = _layers(text, linear)
    kda = _kda(linear)
    mla = _mla(text)
    moe = _moe(text)
    vocab_size = text.integer("vocab_size")
    first_dense = text.integer("first_k_dense_replace", minimum=0)
    if layers and first_dense > len(layers):
        text.problem("first_k_dense_replace", f"must be at most {len(layers)} layers. Given: {first_dense}")
    if layers:
        _check_layer_types(text, layers, first_dense)
    attn_res_block = text.integer("attn_res_block_size", minimum=0, default=0)
    # Exporters write quantization_config at either level, or at both.
    packed_groups = [group for fields in (text, top) if (group := _mxfp4_group(fields)) is not None]
    generation = JsonFields({"eos_token_id": generation_eos}, "generation_config.json: ", problems)
    stops = [token for fields in (top, text, generation) for token in _token_ids(fields, "eos_token_id")]
    if not stops:
        text.problem("eos_token_id", "is missing, in generation_config.json too; replies would never end")
    spec = ModelSpec(
        family=family,
        hidden_size=text.integer("hidden_size"),
        vocab_size=vocab_size,
        layers=layers,
        kda=kda,
        mla=mla,
        moe=moe,
        dense_intermediate=text.integer("intermediate_size"),
        first_dense=first_dense,
        activation=_activation(text),
        attn_res_block=attn_res_block or None,
        norm_eps=text.number("rms_norm_eps"),
        mla_norm_eps=MLA_NORM_EPS,
        max_position=text.integer("max_position_embeddings", "model_max_length"),
        bos_token_id=_token_id(text, top, "bos_token_id"),
        pad_token_id=_token_id(text, top, "pad_token_id"),
        stop_token_ids=tuple(dict.fromkeys(stops)),
        weight_prefix="language_model." if family is ModelFamily.KIMI_K3 else "",
        mxfp4_group=packed_groups[0] if packed_groups else None,
    )
    tokens = (spec.bos_token_id, spec.pad_token_id, *spec.stop_token_ids)
    outside = [token for token in tokens if token >= vocab_size]
    if outside and text.optional("vocab_size") is not None:
        text.problem(
            "vocab_size", f"must be above every token id. Given: {vocab_size}, with token ids {outside}"
        )
    return spec


def _layers(text: JsonFields, linear: JsonFields) -> tuple[LayerKind, ...]:
    """Kinds of all layers from the two 1-based lists, which must partition 1..num_hidden_layers."""
    count = text.integer("num_hidden_layers")
    kinds: dict[int, LayerKind] = {}
    for name, kind in (("kda_layers", LayerKind.KDA), ("full_attn_layers", LayerKind.MLA)):
        numbers = linear.optional(name)
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            linear.problem(
                name, f"must be a list of layer numbers, counted from 1. Given: {as_json(numbers)}"
            )
            return ()
        outside = [number for number in numbers if not 1 <= number <= count]
        twice = sorted({number for number in numbers if number in kinds or numbers.count(number) > 1})
        if outside:
            linear.problem(name, f"layers count from 1 to {count}. Given: {outside[:5]}")
        if twice:
            linear.problem(name, f"names layers that are named already: {twice[:5]}")
        kinds.update(dict.fromkeys(numbers, kind))
    missing = [number for number in range(1, count + 1) if number not in kinds]
    if missing:
        linear.problem(
            "kda_layers and full_attn_layers",
            f"must name every layer from 1 to {count}. Missing: {missing[:5]}",
        )
        return ()
    return tuple(kinds[number] for number in range(1, count + 1))


def _check_layer_types(text: JsonFields, layers: tuple[LayerKind, ...], first_dense: int) -> None:
    """Newer transformers versions repeat the layer kinds in words; they must not contradict."""
    words = {LayerKind.KDA: "linear_attention", LayerKind.MLA: "full_attention"}
    given = text.optional("layer_types")
    if given is not None and given != [words[kind] for kind in layers]:
        text.problem("layer_types", "contradicts linear_attn_config's layer lists")
    feed_forwards = text.optional("mlp_layer_types")
    wanted = ["dense" if index < first_dense else "sparse" for index in range(len(layers))]
    if feed_forwards is not None and feed_forwards != wanted:
        text.problem("mlp_layer_types", "contradicts first_k_dense_replace")


def _kda(linear: JsonFields) -> KdaSpec:
    bound = linear.optional("gate_lower_bound")
    if bound is not None:
        bound = linear.number("gate_lower_bound", positive=False)
        if bound >= 0:
            linear.problem("gate_lower_bound", f"must be below 0 (it bounds a log decay). Given: {bound}")
    spec = KdaSpec(
        num_heads=linear.integer("num_heads"),
        head_dim=linear.integer("head_dim"),
        conv_size=linear.integer("short_conv_kernel_size", minimum=2),
        gate_lower_bound=bound,
        full_rank_gate=linear.boolean("use_full_rank_gate", default=False),
    )
    linear.finish(frozenset(), {})
    return spec


def _mla(text: JsonFields) -> MlaSpec:
    if not text.boolean("mla_use_nope"):
        text.problem("mla_use_nope", "only true is implemented: Milepost's MLA rotates nothing")
    heads = text.integer("num_attention_heads")
    kv_heads = text.optional("num_key_value_heads")
    if kv_heads is not None and kv_heads != heads:
        text.problem(
            "num_key_value_heads", f"must equal num_attention_heads ({heads}). Given: {as_json(kv_heads)}"
        )
    return MlaSpec(
        num_heads=heads,
        q_lora_rank=text.integer("q_lora_rank", minimum=0, default=0) or None,
        kv_lora_rank=text.integer("kv_lora_rank"),
        nope_head_dim=text.integer("qk_nope_head_dim"),
        rope_head_dim=text.integer("qk_rope_head_dim", minimum=0),
        v_head_dim=text.integer("v_head_dim"),
        output_gate=text.boolean("mla_use_output_gate", default=False),
    )


def _moe(text: JsonFields) -> MoeSpec:
    experts = text.integer("num_experts", "num_local_experts")
    top_k = text.integer("num_experts_per_token", "num_experts_per_tok")
    if top_k > experts and text.optional("num_experts", "num_local_experts") is not None:
        text.problem("num_experts_per_token", f"must be at most the {experts} experts. Given: {top_k}")
    intermediate = text.integer("moe_intermediate_size")
    shared = text.integer("num_shared_experts", "n_shared_experts", minimum=0)
    return MoeSpec(
        num_experts=experts,
        top_k=top_k,
        intermediate=intermediate,
        shared_intermediate=shared * intermediate,
        renormalize=text.boolean("moe_renormalize"),
        routed_scaling_factor=text.number("routed_scaling_factor"),
        latent_dim=text.integer("routed_expert_hidden_size", minimum=0, default=0) or None,
        latent_norm=text.boolean("latent_moe_use_norm", default=False),
    )


def _activation(text: JsonFields) -> Activation:
    name = text.choice("hidden_act", ("silu", "situ"))
    if name == "silu":
        text.optional("activation_situ_beta", "activation_situ_linear_beta")  # not used by SwiGLU
        return Activation(name)
    return Activation(name, text.number("activation_situ_beta"), text.number("activation_situ_linear_beta"))


def _mxfp4_group(fields: JsonFields) -> int | None:
    """Group size of packed weights, None without quantisation; other formats are noted as problems."""
    quantization = fields.section("quantization_config", required=False)
    if not quantization.names:
        return None
    groups = quantization.section("config_groups")
    sizes = [_group_size(groups.section(name)) for name in groups.names]
    quantization.finish(HARMLESS_QUANTIZATION, FIXED_QUANTIZATION)
    return sizes[0] if sizes else MXFP4_GROUP


def _group_size(group: JsonFields) -> int:
    weights = group.section("weights")
    size = weights.integer("group_size")
    if size != MXFP4_GROUP:
        weights.problem("group_size", f"must be {MXFP4_GROUP} for MXFP4. Given: {size}")
    weights.finish(HARMLESS_GROUP_WEIGHTS, FIXED_GROUP_WEIGHTS)
    group.finish(HARMLESS_GROUP, FIXED_GROUP)
    return size


def _token_ids(fields: JsonFields, name: str) -> list[int]:
    """Token ids of a field that holds one id, a list of ids or nothing."""
    value = fields.optional(name)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int and item >= 0 for item in ids):
        fields.problem(name, f"must be a token id or a list of token ids. Given: {as_json(value)}")
        return []
    return list(ids)


def _token_id(text: JsonFields, top: JsonFields, name: str) -> int:
    """A token id that K3 states twice; the text model's own wins."""
    outer = top.optional(name)
    return text.integer(name, minimum=0, default=outer if type(outer) is int else None)
