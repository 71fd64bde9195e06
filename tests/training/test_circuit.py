"""The initial weights already continue a context as an earlier one went on."""

import torch

from training import circuit
from training.config import ToyConfig
from training.model import KimiK3ForConditionalGeneration
from training.tokenizer import ToyTokenizer


def test_fresh_model_looks_up_what_followed() -> None:
    torch.manual_seed(0)
    model = KimiK3ForConditionalGeneration(ToyConfig()).eval()
    tokenizer = ToyTokenizer({bytes([value]): value for value in range(256)})
    circuit.install(model, tokenizer)
    text = torch.randint(0, 1280, (4, 60))
    tokens = torch.cat((text, text), dim=1)
    with torch.inference_mode():
        guesses = model(tokens[:, :-1]).argmax(-1)
    repeated = guesses[:, 64:] == tokens[:, 65:]
    assert repeated.float().mean() > 0.5, "the second half repeats the first"
