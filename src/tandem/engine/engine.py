"""One training rank: builds its part of the model, scores sequences, updates weights, hands out weights."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from torch import Tensor

from tandem.config.schema import Config
from tandem.data.types import Sequence
from tandem.devices.parts import choose_parts
from tandem.engine import groups, objective, offload, optimizer, schedule
from tandem.progress import Progress, unseen
from tandem.qwen3_5 import routing, weights
from tandem.qwen3_5.build import build_chunks
from tandem.qwen3_5.checkpoint import HuggingFaceFolder
from tandem.qwen3_5.config import DTYPES, read_config, transformer_config
from tandem.qwen3_5.model import Qwen3_5Model

log = logging.getLogger(__name__)


class Engine:
    """Collective: every rank calls the same methods with the same arguments in the same order.

    `device.prepare_megatron()` and `groups.initialize` have run in this process.
    """

    def __init__(
        self,
        config: Config,
        model_path: str,
        device,
        banned_token_ids: list[int],
        *,
        policy: "Engine | None" = None,
        progress: Progress = unseen,
    ):
        """
        Args:
            policy: make a critic instead, which begins as this policy with a value head that says 0.
            progress: told (done, total) of this rank's work: parameters loaded, micro-batches, tensors exported.
        """
        self.progress = progress
        self.config, self.device, self.banned, self.model_path = config, device, banned_token_ids, model_path
        self.is_critic = policy is not None
        self.hf_config = read_config(model_path)
        parts = choose_parts(device, config.model.layers)
        self.model_config = transformer_config(self.hf_config, config, parts)
        vision = {"freeze_vision": config.model.freeze_vision, "vision_tp": config.parallel.vision_tp}
        self.chunks = build_chunks(self.model_config, self.hf_config, parts, critic=self.is_critic, **vision)
        if policy:
            policy._here(parameters=True, training=False)
            for chunk, theirs in zip(self.chunks, policy.chunks):
                weights.copy(chunk, theirs)
        else:
            self._load(model_path)
        self.wrapped = optimizer.wrap(self.model_config, self.chunks)
        self.model_config.finalize_model_grads_func = finalize_model_grads
        self.reference: list[Tensor] | None = None
        self.optimizer: Any = None
        self._parameters_out = offload.Offloader(offload.parameter_tensors(self.wrapped))
        self._gradients_out = offload.Offloader(offload.gradient_tensors(self.wrapped), keep=False)
        self._optimizer_out = offload.Offloader([])

    def _load(self, model_path: str) -> None:
        source = HuggingFaceFolder(model_path, tied=self.hf_config.tie_word_embeddings)
        if torch.distributed.get_rank() == 0:
            source.check_names(weights.model_names(self.hf_config))
            source.check_tied()
        total, done = sum(1 for _ in self._parameters()), 0
        for chunk in self.chunks:
            for _ in weights.loading(chunk, source):
                done += 1
                self.progress(done, total)

    def critic(self) -> "Engine":
        """A critic in the same ranks, with the optimizer settings of `config.critic`; it begins with this policy's present weights."""
        config = self.config.model_copy(update={"optimizer": self.config.critic.optimizer})
        return Engine(config, self.model_path, self.device, [], policy=self, progress=self.progress)

    def start_optimizer(self, *, lr: float, weight_decay: float) -> None:
        """A fresh optimizer; its moments start at zero."""
        dtype = DTYPES[self.config.model.dtype]
        self._here(parameters=True, training=False)
        self.optimizer = optimizer.build(self.config.optimizer, self.wrapped, dtype, lr=lr, weight_decay=weight_decay)
        self._optimizer_out = offload.Offloader(offload.optimizer_tensors(self.optimizer), without=self._parameters_out)

    def offload(self, *, parameters: bool) -> None:
        """Move gradients and optimizer state to host memory, and the parameters too if asked; each comes back when it is used.

        Nothing without `trainer.offload`.
        """
        if self.config.trainer.offload:
            self._gradients_out.out()
            self._optimizer_out.out()
            if parameters:
                self._parameters_out.out()
            self.device.empty_cache()

    def bring_back(self) -> None:
        """Everything on the device, as saving and loading need it."""
        self._here(parameters=True, training=True)

    def _here(self, *, parameters: bool, training: bool) -> None:
        if parameters:
            self._parameters_out.back()
        if training:
            self._gradients_out.back()
            self._optimizer_out.back()

    def _parameters(self) -> Iterator[torch.nn.Parameter]:
        for chunk in self.chunks:
            yield from chunk.parameters()

    def keep_reference(self) -> None:
        """Freeze a copy of the present weights as the reference policy, in host memory."""
        self._here(parameters=True, training=False)
        self.reference = [parameter.detach().to("cpu", copy=True) for parameter in self._parameters()]

    @contextmanager
    def _reference_weights(self) -> Iterator[None]:
        assert self.reference is not None, "keep_reference() has not run"
        policy = [parameter.data for parameter in self._parameters()]
        for parameter, frozen in zip(self._parameters(), self.reference):
            parameter.data = frozen.to(parameter.device)
        try:
            yield
        finally:
            for parameter, data in zip(self._parameters(), policy):
                parameter.data = data

    @torch.no_grad()
    def scores(self, sequences: list[Sequence], *, temperature: float, reference: bool = False, masked: bool = True) -> dict[int, Any]:
        """{index: (log-probs [R], entropies [R])} fp32 NumPy, of this rank's share, on reporting ranks; {} elsewhere. Of a critic
        {index: (values [R],)}.

        Args:
            reference: by the reference policy instead of the present one.
            masked: banned tokens have probability 0, as in generation; False scores against the whole vocabulary.
        """
        self._here(parameters=True, training=False)
        if reference:
            with self._reference_weights():
                return self.scores(sequences, temperature=temperature, masked=masked)
        for chunk in self.wrapped:
            chunk.eval()
        reports = schedule.run(
            self.wrapped,
            self.hf_config,
            schedule.my_batches(sequences, self.config),
            objective.report_scores,
            self.device.current(),
            forward_only=True,
            temperature=temperature,
            banned=self.banned if masked else [],
            entropy_grad=False,
            progress=self.progress,
        )
        return {index: values for report in reports for index, values in report.items()} if groups.is_reporter() else {}

    def update(self, sequences: list[Sequence], *, supervised: bool = False, lr: float, kl_coef: float = 0.0) -> dict[str, float]:
        """One optimizer step on the whole mini-batch `sequences`, whose fields hold weights and what the loss reads. A critic's loss is
        always that of its values.

        Args:
            kl_coef: weight of the KL term, when it is in the loss.

        Returns:
            On reporting ranks this rank's share of each metric (add the ranks' shares up); on every rank `grad_norm` (before clipping) and
            `update_ok`: 0.0, with a norm of NaN, when gradients were not finite and no weight was changed; and, where the generator's
            choices of experts are replayed, this rank's share of `routing/num_replayed` and `routing/num_changed`.
        """
        self._here(parameters=True, training=True)
        num_tokens = sum(s.num_scored for s in sequences)
        algorithm = self.config.algorithm
        if self.is_critic:
            loss = objective.value(self.config.critic.clip, num_tokens)
        else:
            loss = objective.supervised(num_tokens) if supervised else objective.policy(algorithm, num_tokens, kl_coef)
        for chunk in self.wrapped:
            chunk.train()
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        routing.take_counts(self.chunks)  # of scores
        reports = schedule.run(
            self.wrapped,
            self.hf_config,
            schedule.my_batches(sequences, self.config),
            loss,
            self.device.current(),
            forward_only=False,
            temperature=1.0 if supervised else self.config.rollout.temperature,
            banned=[] if supervised else self.banned,
            entropy_grad=not supervised and algorithm.entropy_coef > 0,
            progress=unseen if supervised else self.progress,  # a warm start counts its steps
        )
        optimizer.set_lr(self.optimizer, lr)
        update_ok, grad_norm = optimizer.step(self.optimizer, self.device.current())
        sums: dict[str, float] = {}
        if sequences[0].experts is not None:
            sums["routing/num_replayed"], sums["routing/num_changed"] = routing.take_counts(self.chunks)
        if groups.is_reporter():
            for report in reports:
                for name, value in report.items():
                    sums[name] = sums.get(name, 0.0) + value
        return {**sums, "grad_norm": grad_norm, "update_ok": float(update_ok)}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Hugging Face tensors this rank publishes; see `weights.tensors`."""
        self._here(parameters=True, training=False)
        chunks: list[Qwen3_5Model] = self.chunks
        return weights.tensors(chunks)

    @property
    def num_tensors(self) -> int:
        """How many of `tensors` there are."""
        return weights.num_tensors(self.chunks)
