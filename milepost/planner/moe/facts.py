"""The numbers that everything else is made of: the model's experts, the device, and its links."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.planner.moe.question import ITEM_BYTES, MoeQuestion
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import ExpertsShape, ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.part_work import EXCHANGE_ROUNDS

__all__ = ["DEFAULT_SMS", "can_multicast", "experts_of", "note_facts"]

DEFAULT_SMS = 148
"""Of a B200 or B300, for which the published wave counts are (NVIDIA Blackwell; DeepGEMM's heuristics)."""
NVSWITCH_BYTES_PER_SECOND = 400e9
"""From the fourth NVLink on, that of H100 (450 GB/s), switches can multicast (NVLS)."""


def can_multicast(hardware: Hardware, question: MoeQuestion) -> bool:
    """Whether the "scattered" tail can run: as asked, else on NVIDIA's devices behind an NVSwitch.

    Descriptions don't say what a switch can do, so this goes by the vendor's name and a link's speed.
    """
    if question.multicast is not None:
        return question.multicast
    nvlink = hardware.interconnect_bytes_per_second >= NVSWITCH_BYTES_PER_SECOND
    return hardware.title.startswith("NVIDIA ") and hardware.domain_devices > 1 and nvlink


def experts_of(name: str, shape: ModelShape) -> ExpertsShape:
    """The mixture of experts of a model.

    Raises:
        ConfigError: it has none.
    """
    if shape.experts is None or shape.moe_layers < 1:
        raise ConfigError(
            f"A plan of expert parallelism needs a model with experts. Given: {name}, which has none."
        )
    return shape.experts


def note_facts(
    sheet: Worksheet, name: str, shape: ModelShape, hardware: Hardware, question: MoeQuestion
) -> None:
    """Put what comes from outside on the worksheet."""
    _note_model(sheet, name, shape)
    _note_hardware(sheet, hardware, question)
    _note_rates(sheet, experts_of(name, shape), hardware)
    for option in ("dispatch", "combine"):
        dtype = getattr(question, f"{option}_dtype")
        sheet.given(f"{option}.item_bytes", ITEM_BYTES[dtype], "bytes", f"--{option}-dtype {dtype}")


def _note_model(sheet: Worksheet, name: str, shape: ModelShape) -> None:
    experts = experts_of(name, shape)
    source = f"config.json of {name}"
    for entry, value, unit, meaning in (
        ("hidden_size", shape.hidden_size, "", "width of a token"),
        ("num_experts", experts.num_experts, "experts", "routed experts of a layer"),
        ("top_k", experts.top_k, "experts", "that a token takes"),
        ("expert_width", experts.width, "", "width of an expert's input and output"),
        ("expert_intermediate", experts.intermediate, "", "width inside an expert"),
        ("expert_matrices", experts.matrices, "", "gate, up and down; 2 without a gate"),
        (
            "expert_item_bytes",
            experts.bytes_per_parameter,
            "bytes",
            "of a parameter, with its share of scales",
        ),
        ("moe_layers", shape.moe_layers, "layers", "with experts"),
    ):
        sheet.given(entry, value, unit, source, meaning)
    sheet.derive("expert_parameters", "expert_matrices * expert_width * expert_intermediate", "")
    sheet.check("expert_parameters", experts.expert_parameters)
    sheet.derive("expert_bytes", "expert_parameters * expert_item_bytes", "bytes", meaning="one expert")
    sheet.check("expert_bytes", experts.expert_bytes)
    sheet.derive(
        "layer_expert_bytes", "num_experts * expert_bytes", "bytes", meaning="all experts of a layer"
    )
    sheet.derive("model_expert_bytes", "moe_layers * layer_expert_bytes", "bytes", meaning="of all layers")


def _note_hardware(sheet: Worksheet, hardware: Hardware, question: MoeQuestion) -> None:
    source = f"hardware {hardware.name}"
    for entry, value, unit in (
        ("device.memory_peak", hardware.memory_bytes_per_second, "bytes/s"),
        ("device.link_peak", hardware.interconnect_bytes_per_second, "bytes/s"),
        ("device.link_latency", hardware.interconnect_latency_seconds, "seconds"),
        ("device.domain", hardware.domain_devices, "devices"),
        ("device.scale_out_peak", hardware.scale_out_bytes_per_second, "bytes/s"),
        ("device.scale_out_latency", hardware.scale_out_latency_seconds, "seconds"),
        ("device.kernel_seconds", hardware.kernel_seconds, "seconds"),
        ("device.bf16_peak", hardware.peak_flops.bf16, "FLOP/s"),
        ("efficiency.compute", hardware.efficiency.compute, ""),
        ("efficiency.experts", hardware.efficiency.experts, ""),
        ("efficiency.memory", hardware.efficiency.memory, ""),
        ("efficiency.network", hardware.efficiency.network, ""),
    ):
        sheet.given(entry, value, unit, source)
    sheet.given("device.exchange_rounds", EXCHANGE_ROUNDS, "", "docs/cost-model.md", "waits of an exchange")
    units = question.sms or hardware.compute_units
    known = "--sms" if question.sms else source
    sheet.given("device.sms", units or DEFAULT_SMS, "", known if units else "assumed: those of a B200")


def _note_rates(sheet: Worksheet, experts: ExpertsShape, hardware: Hardware) -> None:
    dtype, peak = hardware.peak_flops.of_experts(experts.bytes_per_parameter)
    sheet.given("device.expert_peak", peak, "FLOP/s", f"hardware {hardware.name}: {dtype}", "for experts")
    assumed = "share of the peak that is reached: an assumption"
    for entry, formula, unit in (
        ("rate.memory", "device.memory_peak * efficiency.memory", "bytes/s"),
        ("rate.link", "device.link_peak * efficiency.network", "bytes/s"),
        ("rate.scale_out", "device.scale_out_peak * efficiency.network", "bytes/s"),
        ("rate.experts", "device.expert_peak * efficiency.experts", "FLOP/s"),
        ("rate.bf16", "device.bf16_peak * efficiency.compute", "FLOP/s"),
    ):
        sheet.derive(entry, formula, unit, meaning=assumed)
