"""Model FLOPs utilization: the operations that the model itself needs for the tokens trained on, over what the devices could do meanwhile.

The definition is that of PaLM (arXiv 2204.02311, appendix B): nothing that is computed again counts, no padding, no embedding look-up. The
operations are the plan's (`plan/flops.py`), of the sequences as they were.
"""

from collections import Counter
from collections.abc import Iterable
from functools import cache

from tandem.config.checks import has_critic
from tandem.config.schema import Config, ModelConfig
from tandem.data.types import Sequence
from tandem.plan.batch import MicroBatch
from tandem.plan.flops import Flops, batch_flops
from tandem.plan.shapes import Shapes, model_config, shapes_of
from tandem.run.critic import policy_learns


def mfu(config: Config, sequences: list[Sequence], step: int, *, seconds: float, peak_flops: float | None) -> dict[str, float]:
    """`mfu` of this step's update; {} where no device's peak is known.

    Args:
        sequences: of the step, each once.
        seconds: that the update took, over all passes and mini-batches; a critic's too.
        peak_flops: of one device, a second.
    """
    if not peak_flops or seconds <= 0:
        return {}
    forward = sequence_flops(shapes(config.model.path, config.prepare), sequences)
    learning = [forward] * policy_learns(config, step) + [forward.without_head()] * has_critic(config)
    of_pass = sum(model.useful(freeze_vision=config.model.freeze_vision) for model in learning)
    num_devices = config.trainer.nnodes * config.trainer.devices_per_node
    return {"mfu": config.batch.num_epochs * of_pass / (seconds * peak_flops * num_devices)}


def sequence_flops(of: Shapes, sequences: Iterable[Sequence]) -> Flops:
    """Forward, of all sequences together; each image by its own size."""
    lengths, images = [], Counter[int]()
    for sequence in sequences:
        lengths.append(sequence.num_tokens)
        images.update(int(grid.prod()) // of.vision.patches_of_token for _, grids in sequence.images for grid in grids)
    text = batch_flops(of, MicroBatch(tuple(lengths)))
    vision = sum(batch_flops(of, MicroBatch((), num * tokens, num)).vision for tokens, num in images.items())
    return Flops(text.layers, text.logits, vision)


@cache
def shapes(path: str, prepare: str) -> Shapes:
    """Of the model in this folder, or of the one that the recipe makes for itself."""
    return shapes_of(model_config(ModelConfig(path=path), prepare))
