"""Our prompts and sampling settings as vLLM's: the processor has run already, so vLLM gets its results and runs none of its own.

Imported where vLLM is: in a generator's process.
"""

import hashlib

import numpy as np
import torch
from vllm import SamplingParams as VllmSamplingParams
from vllm.inputs import EngineInput, mm_input, tokens_input
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange
from vllm.sampling_params import RequestOutputKind

from tandem.config.checks import check_temperature
from tandem.data.types import Prompt
from tandem.errors import RunError, UserError
from tandem.rollout.types import Request


def engine_input(prompt: Prompt, image_token_id: int, merge_size: int) -> EngineInput:
    """The prompt as vLLM's own processor would hand it over: token ids, pixels of each image, and where each image's tokens are.

    Images are identified by a hash of their pixels: vLLM's encoder and prefix caches share what is equal and nothing else.

    Raises:
        RunError: the image tokens in the prompt are not those of its images.
    """
    token_ids = prompt.token_ids.tolist()
    if prompt.image_grid_thw is None or prompt.pixel_values is None:
        check_image_tokens(prompt, image_token_id, np.empty(0, np.int64))
        return tokens_input(token_ids)
    grids = torch.tensor(prompt.image_grid_thw)  # [I, 3]
    num_patches = grids.prod(-1)
    num_tokens = (num_patches // merge_size**2).numpy()
    offsets = check_image_tokens(prompt, image_token_id, num_tokens)
    fields = {
        "pixel_values": MultiModalFieldConfig.flat_from_sizes("image", num_patches),
        "image_grid_thw": MultiModalFieldConfig.batched("image", keep_on_cpu=True),
    }
    items = MultiModalKwargsItems.from_hf_inputs({"pixel_values": torch.tensor(prompt.pixel_values), "image_grid_thw": grids}, fields)
    pixels = np.split(prompt.pixel_values, np.cumsum(num_patches.numpy())[:-1])
    return mm_input(
        token_ids,
        mm_kwargs=items,
        mm_hashes={"image": [content_hash(grid, patches) for grid, patches in zip(prompt.image_grid_thw, pixels)]},
        mm_placeholders={"image": [PlaceholderRange(int(offset), int(length)) for offset, length in zip(offsets, num_tokens)]},
    )


def check_image_tokens(prompt: Prompt, image_token_id: int, num_tokens: np.ndarray) -> np.ndarray:
    """Where each image's tokens begin, [I]. Images are separated by other tokens, so each is one run of image tokens."""
    edges = np.diff((prompt.token_ids == image_token_id).astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    found, needed = (ends - starts).tolist(), num_tokens.tolist()
    if found != needed:
        raise RunError(
            f"row {prompt.row.id}: the prompt holds image tokens in runs of {found}, its images need {needed}",
            "the trainer and the generator must see the same tokens and pixels",
            "prepare the prompt with the processor of the model's own folder",
        )
    return starts


def content_hash(grid: np.ndarray, patches: np.ndarray) -> str:
    digest = hashlib.blake2b(np.ascontiguousarray(grid).tobytes(), digest_size=20)
    digest.update(np.ascontiguousarray(patches).data)
    return digest.hexdigest()


def sample_seed(seed: int, row_id: str, sample: int) -> int:
    """The seed of one sample: the same in every process and for every order of requests. 0 <= seed < 2^63."""
    digest = hashlib.blake2b(f"{seed}|{row_id}|{sample}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def sampling_params(
    request: Request, sample: int, *, max_model_len: int, banned_token_ids: list[int], stop_token_ids: list[int]
) -> VllmSamplingParams:
    """vLLM's settings for one sample of a request.

    A banned token gets minus infinity added to its logit, before temperature: `allowed_token_ids` would do the same, but lists the other
    248,000 in every request. Only `stop_token_ids` end a response: the tokenizer's end token and the folder's generation config do not.

    Raises:
        UserError: a temperature that vLLM would change, or a prompt that leaves no room for a response.
    """
    sampling, num_prompt_tokens = request.sampling, len(request.prompt.token_ids)
    check_temperature("rollout.temperature", sampling.temperature, greedy=True)
    if num_prompt_tokens >= max_model_len:
        raise UserError(
            f"row {request.prompt.row.id}: the prompt has {num_prompt_tokens} tokens, prompt and response may have {max_model_len}",
            "there is no room for a response",
            "lower data.max_prompt_length, or raise rollout.max_model_len",
        )
    return VllmSamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=sample_seed(sampling.seed, request.prompt.row.id, sample),
        max_tokens=min(sampling.max_tokens, max_model_len - num_prompt_tokens),
        logit_bias=dict.fromkeys(banned_token_ids, float("-inf")) or None,
        stop_token_ids=stop_token_ids,
        ignore_eos=True,
        logprobs=0,  # of the sampled token only
        flat_logprobs=True,
        detokenize=False,  # once at the end is enough
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )
