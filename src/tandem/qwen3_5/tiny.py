"""A small random Qwen3.5-MoE vision-language model, written as an ordinary Hugging Face folder.

Everything in it is the real thing but its size: the architecture, the tokenizer class with Qwen's pre-tokenizer and special tokens,
the processor classes. Only the vocabulary is trained here, and the chat template is ours.
"""

import json
import re
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

TEMPLATE = Path(__file__).with_name("chat_template.jinja")

# Added tokens of Qwen3.5's tokenizer, in its order.
SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
    *("<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|box_end|>", "<|quad_start|>", "<|quad_end|>"),
    *("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
PLAIN_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")  # decoded as text


@dataclass(frozen=True)
class TinyShape:
    """Sizes of one tiny model; names as in the Hugging Face config."""

    vocab_size: int = 384  # BPE and added tokens together; padded to a multiple of 64 when the corpus gives fewer
    hidden_size: int = 96
    num_hidden_layers: int = 2
    full_attention_interval: int = 2  # every n-th layer has full attention
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32  # the smallest that vLLM's CPU attention takes
    linear_num_key_heads: int = 2
    linear_num_value_heads: int = 4
    linear_head_dim: int = 32
    num_experts: int = 4  # 0: a dense model
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64  # of an expert, or of a dense layer
    vision_depth: int = 2
    vision_hidden_size: int = 64
    vision_num_heads: int = 4


_TEST = TinyShape(  # every kind of layer, and enough heads and experts to split
    hidden_size=64,
    num_hidden_layers=4,
    full_attention_interval=4,
    linear_head_dim=16,
    linear_num_key_heads=4,
    linear_num_value_heads=8,
    num_experts=8,
    moe_intermediate_size=32,
    vision_hidden_size=32,
)
SIZES = {
    "demo": TinyShape(),  # learns digits and simple diagrams in minutes on two CPU cores
    "test": _TEST,
    "test-dense": replace(_TEST, num_experts=0),
    "test-16-experts": replace(_TEST, num_experts=16),
    "100M": replace(  # of parameters: large enough that weights outweigh the rest
        _TEST,
        hidden_size=512,
        num_hidden_layers=8,
        num_attention_heads=8,
        head_dim=64,
        linear_num_value_heads=16,
        linear_head_dim=32,
        num_experts=16,
        moe_intermediate_size=384,
        vision_hidden_size=128,
    ),
}
PATCH_SIZE, MERGE_SIZE, TEMPORAL_PATCH_SIZE = 8, 2, 2  # a token sees 16 x 16 pixels


def layout_sizes(size: str | TinyShape) -> tuple[dict[str, int], dict[str, int]]:
    """What a layout divides in the model of `size`: of its text and of its vision config. Needs no tokenizer and no torch."""
    shape = SIZES[size] if isinstance(size, str) else size
    text = asdict(shape) | ({"shared_expert_intermediate_size" if shape.num_experts else "intermediate_size": shape.moe_intermediate_size})
    hidden = shape.vision_hidden_size
    return text, {"num_heads": shape.vision_num_heads, "hidden_size": hidden, "intermediate_size": 2 * hidden}


def make_tiny_model(
    out_dir: str | Path, corpus: list[str], seed: int = 0, size: str | TinyShape = "demo", tie_word_embeddings: bool = False
) -> None:
    """Write a random model that AutoConfig, AutoProcessor and AutoModelForImageTextToText load from `out_dir`.

    Args:
        out_dir: folder to fill; created when missing.
        corpus: texts that the vocabulary is trained on.
        seed: of the weights (float32); the caller's random state is left alone.
        size: a name in `SIZES`, or a shape of one's own.
        tie_word_embeddings: share the embedding with the output layer; the real models do not.
    """
    import torch
    from transformers import GenerationConfig, Qwen3_5ForConditionalGeneration, Qwen3_5MoeForConditionalGeneration

    assert not isinstance(size, str) or size in SIZES, f"size is one of {', '.join(SIZES)}"
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    shape = SIZES[size] if isinstance(size, str) else size
    tokenizer = train_tokenizer(corpus, shape.vocab_size)
    tokenizer.save_pretrained(out)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        architecture = Qwen3_5MoeForConditionalGeneration if shape.num_experts else Qwen3_5ForConditionalGeneration
        model = architecture(make_config(tokenizer, shape, tie_word_embeddings)).float()
    eos, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    model.generation_config = GenerationConfig(eos_token_id=[eos, pad], pad_token_id=pad, do_sample=True)
    with no_progress_bars():
        model.save_pretrained(out)
    write_processor_configs(out)


@contextmanager
def no_progress_bars():
    """Keep transformers from drawing bars for files that take milliseconds."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def train_tokenizer(corpus: list[str], vocab_size: int):
    """A `Qwen3_5Tokenizer` with at most `vocab_size` tokens: 256 bytes, merges learned from `corpus`, then the added tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX, Qwen3_5Tokenizer

    bpe = Tokenizer(models.BPE())
    bpe.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    added = (*SPECIAL_TOKENS, *PLAIN_TOKENS)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - len(added), initial_alphabet=alphabet, show_progress=False)
    borders = re.compile("|".join(re.escape(token) for token in added))  # as in use: no merge crosses an added token
    bpe.train_from_iterator((piece for text in corpus for piece in borders.split(text)), trainer)
    learned = json.loads(bpe.to_str())["model"]

    tokenizer = Qwen3_5Tokenizer(vocab=learned["vocab"], merges=[tuple(pair) for pair in learned["merges"]], model_max_length=4096)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN_TOKENS])
    tokenizer.eos_token, tokenizer.pad_token = "<|im_end|>", "<|endoftext|>"
    tokenizer.chat_template = TEMPLATE.read_text(encoding="utf-8")
    return tokenizer


def make_config(tokenizer, shape: TinyShape, tie_word_embeddings: bool):
    """The `Qwen3_5MoeConfig`, or for a dense model the `Qwen3_5Config`, of `shape`, with the token ids of `tokenizer`."""
    from transformers import Qwen3_5Config, Qwen3_5MoeConfig

    image, video, start, end, eos, pad = tokenizer.convert_tokens_to_ids(
        ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<|im_end|>", "<|endoftext|>"]
    )
    pairs = shape.head_dim // 4  # of dimensions that turn together
    text = {
        "vocab_size": -(-len(tokenizer) // 64) * 64,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "full_attention_interval": shape.full_attention_interval,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "head_dim": shape.head_dim,
        "linear_num_key_heads": shape.linear_num_key_heads,
        "linear_num_value_heads": shape.linear_num_value_heads,
        "linear_key_head_dim": shape.linear_head_dim,
        "linear_value_head_dim": shape.linear_head_dim,
        "max_position_embeddings": 4096,
        # half of a head turns, so that 32 dimensions still give every axis two frequencies (the real models: a quarter of 256)
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [pairs // 3 + (axis < pairs % 3) for axis in range(3)],
            "mrope_interleaved": True,
        },
        "eos_token_id": eos,
        "pad_token_id": pad,
        "tie_word_embeddings": tie_word_embeddings,
    }
    if shape.num_experts:
        text |= {
            "num_experts": shape.num_experts,
            "num_experts_per_tok": shape.num_experts_per_tok,
            "moe_intermediate_size": shape.moe_intermediate_size,
            "shared_expert_intermediate_size": shape.moe_intermediate_size,
        }
    else:
        text["intermediate_size"] = shape.moe_intermediate_size
    vision = {
        "depth": shape.vision_depth,
        "hidden_size": shape.vision_hidden_size,
        "intermediate_size": 2 * shape.vision_hidden_size,
        "num_heads": shape.vision_num_heads,
        "patch_size": PATCH_SIZE,
        "spatial_merge_size": MERGE_SIZE,
        "temporal_patch_size": TEMPORAL_PATCH_SIZE,
        "out_hidden_size": shape.hidden_size,
        "num_position_embeddings": 64,
    }
    return (Qwen3_5MoeConfig if shape.num_experts else Qwen3_5Config)(
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=tie_word_embeddings,
        dtype="float32",
    )


def write_processor_configs(out: Path) -> None:
    """The two files of the real models' processor. Sizes are areas in pixels: an image has 1 to 256 tokens."""
    side = PATCH_SIZE * MERGE_SIZE
    common = {
        "size": {"shortest_edge": side**2, "longest_edge": 256 * side**2},
        "patch_size": PATCH_SIZE,
        "temporal_patch_size": TEMPORAL_PATCH_SIZE,
        "merge_size": MERGE_SIZE,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "processor_class": "Qwen3VLProcessor",
    }
    files = {
        "preprocessor_config.json": {"image_processor_type": "Qwen2VLImageProcessorFast"},
        "video_preprocessor_config.json": {"video_processor_type": "Qwen3VLVideoProcessor"},
    }
    for name, own in files.items():
        (out / name).write_text(json.dumps(common | own, indent=2) + "\n")
