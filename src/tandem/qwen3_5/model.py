"""Qwen3.5 on Megatron-Core: vision tower, embedding, decoder, token scores; each pipeline stage builds its part."""

from dataclasses import dataclass

from megatron.core import tensor_parallel
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.enums import ModelType
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from tandem.devices.parts import Parts
from tandem.qwen3_5.layout import SequenceLayout
from tandem.qwen3_5.scores import token_scores
from tandem.qwen3_5.spec import decoder_spec
from tandem.qwen3_5.vision import VisionTower


@dataclass
class ModelInput:
    """One micro-batch on the device. T: tokens; N: patches; I: images."""

    input_ids_T: Tensor
    target_T: Tensor  # the next token; anything where there is none to score
    layout: SequenceLayout
    pixel_values: Tensor | None = None  # [N, patch_dim]
    image_grid_thw: Tensor | None = None  # [I, 3]
    temperature: float = 1.0
    banned: Tensor | None = None
    entropy_grad: bool = False


class Qwen3_5Model(LanguageModule):
    """`forward` returns hidden states on all pipeline stages but the last, and scores [2, T] (log-prob, entropy) there."""

    is_critic = False

    def __init__(
        self,
        config: TransformerConfig,
        hf_config,
        parts: Parts,
        *,
        pre_process: bool = True,
        post_process: bool = True,
        vp_stage: int | None = None,
        freeze_vision: bool = False,
        vision_tp: bool = False,
    ):
        super().__init__(config)
        text = hf_config.text_config
        self.hf_config, self.vp_stage = hf_config, vp_stage
        self.pre_process, self.post_process = pre_process, post_process
        self.model_type = ModelType.encoder_or_decoder
        self.share_embeddings_and_output_weights = bool(hf_config.tie_word_embeddings)
        if pre_process:
            self.visual = VisionTower(config, hf_config.vision_config, self.tp_group, cut=vision_tp, freeze=freeze_vision)
            # image features replace rows before the scatter to sequence-parallel ranks, so the embedding does not scatter
            self.embedding = LanguageModelEmbedding(
                config, text.vocab_size, 0, position_embedding_type="none", scatter_to_sequence_parallel=False, tp_group=self.tp_group
            )
        self.decoder = TransformerBlock(
            config,
            decoder_spec(config, text.layer_types, parts, vp_stage),
            pre_process=pre_process,
            post_process=post_process,
            vp_stage=vp_stage,
        )
        self._add_head(text.vocab_size)

    def _add_head(self, vocab_size: int) -> None:
        if self.post_process:
            self.output_layer = tensor_parallel.ColumnParallelLinear(
                self.config.hidden_size,
                vocab_size,
                config=self.config,
                init_method=self.config.init_method,
                bias=False,
                gather_output=False,
                skip_weight_param_allocation=self.pre_process and self.share_embeddings_and_output_weights,
                tp_group=self.tp_group,
            )
        self.setup_embeddings_and_output_layer()

    def set_input_tensor(self, input_tensor: list[Tensor] | Tensor | None) -> None:
        """Called by Megatron's schedules with the previous stage's output."""
        self.decoder.set_input_tensor(input_tensor[0] if isinstance(input_tensor, list) else input_tensor)

    def forward(self, batch: ModelInput) -> Tensor:
        hidden = self._embed(batch) if self.pre_process else None
        hidden = self.decoder(hidden, attention_mask=None, packed_seq_params=batch.layout)
        return self._score(hidden, batch) if self.post_process else hidden

    def _embed(self, batch: ModelInput) -> Tensor:
        """[L or L / tp, 1, hidden]."""
        hidden = self.embedding(batch.input_ids_T[None], None)[:, 0]  # [T, hidden]
        if batch.pixel_values is not None:
            features = self.visual(batch.pixel_values, batch.image_grid_thw)
            is_image = batch.input_ids_T == self.hf_config.image_token_id
            hidden = hidden.masked_scatter(is_image[:, None], features.to(hidden.dtype))
        if batch.layout.local_L is not None:
            hidden = hidden[batch.layout.local_L]
        hidden = hidden[:, None]
        if self.config.sequence_parallel:
            hidden = tensor_parallel.scatter_to_sequence_parallel_region(hidden)
        return hidden.contiguous()

    def _score(self, hidden: Tensor, batch: ModelInput) -> Tensor:
        """[2, T]; under context parallelism gathered to whole sequences on every rank."""
        if self.config.sequence_parallel:
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden)
        else:
            hidden = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
        shared = self.share_embeddings_and_output_weights and self.pre_process
        weight = self.shared_embedding_or_output_weight() if shared else self.output_layer.weight
        layout = batch.layout
        target = batch.target_T if layout.local_L is None else batch.target_T[layout.local_L]
        scores = token_scores(
            hidden[:, 0],
            weight,
            target,
            tp_group=self.tp_group,
            temperature=batch.temperature,
            banned=batch.banned,
            entropy_grad=batch.entropy_grad,
        )
        return self._whole_sequences(scores, layout)

    def _whole_sequences(self, scores: Tensor, layout: SequenceLayout) -> Tensor:
        """[n, T] from this context-parallel rank's [n, L]."""
        if layout.local_L is None:
            return scores
        # Every rank computes the whole loss; its gradient flows only into the rank's own slice: the sum over ranks counts it once.
        gathered = tensor_parallel.gather_from_sequence_parallel_region(
            scores.t().contiguous(), tensor_parallel_output_grad=False, group=self.cp_group
        )
        return gathered[layout.ungathered_T].t()
