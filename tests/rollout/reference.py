"""Transformers' log-probs of sampled responses: the other computation that the generator's are compared with."""

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3_5MoeForConditionalGeneration

from tandem.data.types import Prompt
from tandem.rollout.types import Completion

NEAR_TIE = 1e-5  # a gap between router logits that rounding may turn over


class Reference:
    """The model of a folder, in fp32."""

    def __init__(self, folder, banned_token_ids: list[int]):
        self.model = Qwen3_5MoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        self.banned = banned_token_ids
        self.top_k = self.model.config.text_config.num_experts_per_tok
        self.gaps: list[Tensor] = []  # [T] a layer
        for layer in self.model.model.language_model.layers:
            layer.mlp.gate.register_forward_hook(self._note_gap)

    def _note_gap(self, module, inputs, outputs) -> None:
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, module.weight.size(-1)), module.weight)
        best = logits.sort(-1, descending=True).values
        self.gaps.append(best[:, self.top_k - 1] - best[:, self.top_k])

    @torch.no_grad()
    def logprobs(self, prompt: Prompt, response_ids: np.ndarray, temperature: float) -> tuple[np.ndarray, int]:
        """Log-probs [R] over the tokens that are not banned, and how many come before the first near-tie of a router."""
        self.gaps.clear()
        ids = torch.from_numpy(np.concatenate([prompt.token_ids, response_ids]))[None]
        images = {}
        if prompt.pixel_values is not None:
            images = {"pixel_values": torch.tensor(prompt.pixel_values), "image_grid_thw": torch.tensor(prompt.image_grid_thw)}
        kinds = (ids == self.model.config.image_token_id).long()
        logits = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=kinds, **images).logits[0]
        logits[:, self.banned] = float("-inf")
        first = len(prompt.token_ids)
        logprobs = (logits[first - 1 : -1] / temperature).log_softmax(-1).gather(1, ids[0, first:, None])[:, 0]
        ties = (torch.stack(self.gaps).amin(0) < NEAR_TIE).nonzero()
        num_clear = len(response_ids) if len(ties) == 0 else max(0, int(ties[0]) - first + 1)
        return logprobs.numpy(), num_clear


def assert_same_logprobs(reference: Reference, prompts: list[Prompt], completions: list[list[Completion]], temperature: float) -> None:
    """Every sample's log-probs are the reference's, as far as no router was undecided."""
    differences, num_tokens = [], 0
    for prompt, samples in zip(prompts, completions, strict=True):
        for sample in samples:
            expected, num_clear = reference.logprobs(prompt, sample.token_ids, temperature)
            differences.append(np.abs(expected - sample.logprobs)[:num_clear])
            num_tokens += len(sample.token_ids)
    difference = np.concatenate(differences)
    assert len(difference) >= 0.7 * num_tokens, f"{num_tokens - len(difference)} of {num_tokens} tokens follow a near-tie"
    assert difference.max() <= 1e-3 and difference.mean() <= 1e-4, f"max {difference.max():.2e} mean {difference.mean():.2e}"
