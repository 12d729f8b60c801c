"""What the forked ranks of `test_routing.py` run. Imported in rank processes, never by pytest itself."""

from tandem.config.schema import ParallelConfig
from tandem.data.types import Sequence
from tests.engine.ranks import make_engine


def replay(model_path: str, parallel: ParallelConfig, sequences: list[Sequence], **sections) -> dict:
    """Scores, and the metrics of one update with learning rate 0."""
    engine = make_engine(model_path, parallel, **sections)
    engine.start_optimizer(lr=0.0, weight_decay=0.0)
    return {"scores": engine.scores(sequences, temperature=1.0), "update": engine.update(sequences, supervised=True, lr=0.0)}
