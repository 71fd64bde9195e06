"""Models: layers, the decoder that both families share, and the loading of checkpoints."""

from milepost.models.decoder import Model
from milepost.models.inputs import StepInputs
from milepost.models.loader import load_model, weight_bytes
from milepost.models.outputs import StepOutput
from milepost.models.weights import Progress

__all__ = ["Model", "Progress", "StepInputs", "StepOutput", "load_model", "weight_bytes"]
