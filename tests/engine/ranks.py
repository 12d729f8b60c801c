"""What the forked ranks of these tests run. Imported in rank processes, never by pytest itself."""

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil

from tandem.config.schema import Config, ParallelConfig
from tandem.data.types import Sequence


def config_for(parallel: ParallelConfig, **sections) -> Config:
    settings = {"device": "cpu", "model": {"dtype": "float32"}, "parallel": parallel.model_dump(), "batch": {"max_tokens_per_device": 200}}
    return Config.model_validate(settings | sections)


def make_engine(model_path: str, parallel: ParallelConfig, **sections):
    from tandem.devices import cpu
    from tandem.engine.engine import Engine

    return Engine(config_for(parallel, **sections), model_path, cpu, banned_token_ids=[])


def score_and_train(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], num_steps: int, lr: float, **sections) -> dict:
    """Scores before training, then the losses and gradient norms of supervised steps on the whole batch, then scores."""
    sections.setdefault("optimizer", {"eps": 1e-4, "betas": (0.9, 0.95), "clip_grad": 1.0})
    engine = make_engine(model_path, parallel, **sections)
    before = engine.scores(sequences, temperature=1.0, masked=False)
    engine.start_optimizer(lr=lr, weight_decay=0.0)
    steps = [engine.update(sequences, supervised=True, lr=lr) for _ in range(num_steps)]
    return {"before": before, "steps": steps, "after": engine.scores(sequences, temperature=1.0, masked=False)}


def score(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], **sections) -> dict:
    return make_engine(model_path, parallel, **sections).scores(sequences, temperature=1.0, masked=False)


def export_tensors(model_path: str, parallel: ParallelConfig, **sections) -> dict[str, np.ndarray]:
    """The Hugging Face tensors that this rank publishes."""
    return {name: tensor.numpy().copy() for name, tensor in make_engine(model_path, parallel, **sections).tensors()}


def gradients(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], **sections) -> dict[str, np.ndarray]:
    """Gradients of the supervised loss, by Hugging Face name, of the parameters that this rank publishes."""
    import torch

    from tandem.engine import offload

    engine = make_engine(model_path, parallel, **sections)
    engine.start_optimizer(lr=0.0, weight_decay=0.0)
    step, engine.optimizer.step = engine.optimizer.step, lambda: (True, 0.0, 0)
    engine.update(sequences, supervised=True, lr=0.0)
    engine.optimizer.step = step
    for buffer in offload.buffers(engine.wrapped):
        for bucket in buffer.buckets:
            shards = bucket.grad_data.chunk(buffer.data_parallel_world_size)  # a rank's own is reduced, the others are left as they were
            own = shards[torch.distributed.get_rank(buffer.data_parallel_group)].clone()
            torch.distributed.all_gather(list(shards), own, group=buffer.data_parallel_group)
    for chunk in engine.chunks:
        for parameter in chunk.parameters():
            parameter.data = parameter.main_grad.clone()
    return {name: tensor.float().numpy().copy() for name, tensor in engine.tensors()}


def train_and_save(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], folder: str, **sections) -> dict:
    """Two steps, a checkpoint, three more: the metrics of the last, which all that was saved has a part in.

    The checkpoint is saved twice: with all waiting for it, and beside the three steps, its files written after them.
    """
    from tandem.engine import checkpoint

    engine = make_engine(model_path, parallel, **sections)
    engine.start_optimizer(lr=1e-3, weight_decay=0.01)
    for _ in range(2):
        engine.update(sequences, supervised=True, lr=1e-3)
    at_once, beside = Path(folder) / "at_once", Path(folder) / "beside"
    for path in (at_once, beside):
        path.mkdir(exist_ok=True)
    digests = checkpoint.save(engine, at_once)
    num_children = len(psutil.Process().children())
    with writers_waiting() as let_them_write:
        writing = checkpoint.begin_save(engine, beside)
        copied = writing.num_bytes
        metrics = [engine.update(sequences, supervised=True, lr=1e-3) for _ in range(3)][-1]
        was_early = writing.poll() is not None
        let_them_write()
    digests_beside = checkpoint.conclude(writing)
    differing = {name for name in digests | digests_beside if digests.get(name) != digests_beside.get(name)}
    sizes = {"num_children": num_children, "copied": copied, "kept": writing.num_bytes}
    return metrics | sizes | {"written_early": was_early, "differing": differing - {".metadata"}}  # it holds the time and its own path


@contextlib.contextmanager
def writers_waiting() -> Iterator[Callable[[], None]]:
    """Threads that write a checkpoint begin once the function that this yields is called."""
    from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync

    write, may = FileSystemWriterAsync.write_preloaded_data, threading.Event()

    def wait_and_write(*args, **kwargs) -> None:
        assert may.wait(60)
        inspect.unwrap(write)(*args, **kwargs)

    FileSystemWriterAsync.write_preloaded_data = staticmethod(wait_and_write)
    try:
        yield may.set
    finally:
        FileSystemWriterAsync.write_preloaded_data = staticmethod(write)


def load_and_train(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], folder: str, **sections) -> dict:
    """The checkpoint into a fresh engine, then three steps: the metrics of the last."""
    from tandem.engine import checkpoint

    engine = make_engine(model_path, parallel, **sections)
    engine.start_optimizer(lr=1e-3, weight_decay=0.01)
    checkpoint.load(engine, Path(folder) / "beside")
    (Path(folder) / "again").mkdir(exist_ok=True)
    checkpoint.save(engine, Path(folder) / "again")
    return [engine.update(sequences, supervised=True, lr=1e-3) for _ in range(3)][-1]


def differing_tensors(parallel: ParallelConfig, folders: list[str]) -> dict:
    """Names of the tensors of two checkpoints that are equal, bit for bit, and of those that are not, or in one only."""
    import torch
    from megatron.core import dist_checkpointing

    loaded = (dist_checkpointing.load_plain_tensors(folder) for folder in folders)
    one, other = ({name: value for name, value in state.items() if torch.is_tensor(value)} for state in loaded)
    equal = sorted(name for name in one.keys() & other.keys() if torch.equal(one[name], other[name]))
    return {"equal": equal, "differing": sorted((one.keys() | other.keys()) - set(equal))}


def save_on_a_full_disk(model_path: str, parallel: ParallelConfig, folder: str) -> str:
    """The message of the error when the system refuses to write more than 20,000 bytes of a file."""
    import resource
    import signal

    from tandem.engine import checkpoint
    from tandem.errors import RunError

    engine = make_engine(model_path, parallel)
    engine.start_optimizer(lr=1e-3, weight_decay=0.0)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error instead of the end
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
    try:
        checkpoint.save(engine, Path(folder))
    except RunError as error:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return str(error)
    return "saved"


def count_forwards(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], recompute: str) -> dict[str, int]:
    """Forward passes in one update of a single micro-batch: of whole layers, experts and core attention."""
    engine = make_engine(model_path, parallel, trainer={"recompute": recompute})
    engine.start_optimizer(lr=1e-3, weight_decay=0.0)
    counts = {"layers": 0, "experts": 0, "attention": 0}

    def count(kind: str, module) -> None:
        module.register_forward_pre_hook(lambda *_: counts.update({kind: counts[kind] + 1}))

    for layer in engine.chunks[0].decoder.layers:
        count("layers", layer)
        count("experts", layer.mlp.experts)
        if hasattr(layer.self_attention, "core_attention"):
            count("attention", layer.self_attention.core_attention)
    engine.update(sequences[:1], supervised=True, lr=1e-3)
    return counts


def train_into_a_trap(
    model_path: str, parallel: ParallelConfig, sequences: list[Sequence], trap: str, num_steps: int, lr: float, **sections
) -> dict:
    """`score_and_train` as Megatron-Core 0.16.1 would have it without our settings: what they prevent."""
    from tandem.engine import engine
    from tandem.qwen3_5 import build

    make_config, mark = engine.transformer_config, build.mark_parameters

    def batched_p2p(*args):
        config = make_config(*args)
        config.overlap_p2p_comm, config.batch_p2p_comm = False, True
        return config

    def experts_unmarked(chunk) -> None:
        mark(chunk)
        for parameter in chunk.parameters():
            if hasattr(parameter, "allreduce"):
                del parameter.allreduce

    if trap == "interleaved pipeline":
        engine.transformer_config = batched_p2p
    elif trap == "expert gradients":
        build.mark_parameters = experts_unmarked
    return score_and_train(model_path, parallel, sequences, num_steps, lr, **sections)


def train_with_offload(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], **sections) -> dict:
    """Two updates, scores by policy and reference between them, everything offloaded in between."""
    from tandem.engine import offload

    engine = make_engine(model_path, parallel, **sections)
    engine.offload(parameters=True)  # as when generators start
    engine.keep_reference()
    engine.start_optimizer(lr=1e-3, weight_decay=0.01)
    metrics = []
    for _ in range(2):
        engine.offload(parameters=True)
        tensors = [*offload.parameter_tensors(engine.wrapped), *offload.gradient_tensors(engine.wrapped)]
        tensors += offload.optimizer_tensors(engine.optimizer)
        bytes_out = sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())
        engine.scores(sequences, temperature=1.0, reference=True)
        metrics.append(engine.update(sequences, supervised=True, lr=1e-3))
        engine.offload(parameters=False)
    engine.offload(parameters=True)
    published = {name: float(tensor.float().sum()) for name, tensor in engine.tensors()}
    return {"metrics": [*metrics, published], "scores": engine.scores(sequences, temperature=1.0), "bytes_out": bytes_out}


def step_on_infinite_gradients(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], **sections) -> dict:
    """An update, one with infinite gradients on one data-parallel rank, and another; weights and optimizer state around the second."""
    import torch

    from tandem.engine import offload

    def bytes_now() -> list[bytes]:
        tensors = [*offload.parameter_tensors(engine.wrapped), *offload.optimizer_tensors(engine.optimizer)]
        states = [state for part in engine.optimizer.chained_optimizers for state in part.optimizer.state.values()]
        tensors += [value for state in states for value in state.values()]
        return [tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]

    engine = make_engine(model_path, parallel, **sections)
    engine.start_optimizer(lr=1e-3, weight_decay=0.01)
    engine.update(sequences, supervised=True, lr=1e-3)
    before = bytes_now()
    weights = sequences[0].fields["weights"]
    sequences[0].fields["weights"] = weights * np.inf
    refused = engine.update(sequences, supervised=True, lr=1e-3)
    after = bytes_now()
    sequences[0].fields["weights"] = weights
    taken = engine.update(sequences, supervised=True, lr=1e-3)
    return {"refused": refused, "unchanged": before == after, "taken": taken, "changed": bytes_now() != after}
