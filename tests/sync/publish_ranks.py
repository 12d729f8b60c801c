"""What forked ranks run to publish as a run does. A module of its own: the run's imports happen before the fork."""

import shutil
from dataclasses import replace
from pathlib import Path

from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tandem.sync.buckets import BucketWriter
from tandem.sync.memory import shared_files
from tandem.sync.shared_memory import SHARED_MEMORY
from tandem.sync.types import Bucket
from tests.engine.export_ranks import export_engine
from tests.engine.ranks import make_engine


def train_publish_and_export(
    model_path: str, parallel: ParallelConfig, sequences: list[Sequence], prefix: str, bucket_bytes: int, target: str
) -> list[Bucket]:
    """One step; this rank's buckets as version 1, each in a file of its own that stays; the export of the same weights."""
    engine = make_engine(model_path, parallel)
    engine.start_optimizer(lr=1e-2, weight_decay=0.0)
    engine.update(sequences, supervised=True, lr=1e-2)
    writer, kept = BucketWriter(shared_files(SHARED_MEMORY, prefix), bucket_bytes), []
    for bucket in writer.write(engine.tensors(), version=1):
        path = Path(f"{bucket.path}-kept-{len(kept)}")
        shutil.copyfile(bucket.path, path)
        kept.append(replace(bucket, path=str(path)))
    writer.close()
    export_engine(engine, model_path, target)
    return kept
