"""MLflow: the server at MLFLOW_TRACKING_URI, else `RUN/mlflow.db`; `mlflow ui --backend-store-uri sqlite:///RUN/mlflow.db` shows it."""

import os
import time
from collections.abc import Mapping

from tandem.track.trackers.types import TrackedRun

TAG, FILE = "tandem.id", "mlflow.db"
_BATCH, _LONGEST = 100, 500  # parameters of a call, characters of one: what every server takes


class MlflowRun:
    """By the client, not by `mlflow.log_metric`, whose current run belongs to one thread."""

    def __init__(self, run: TrackedRun):
        from mlflow import MlflowClient
        from mlflow.entities import Param

        where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(run.folder / FILE).resolve()}"
        self.client = MlflowClient(tracking_uri=where)
        found = self.client.get_experiment_by_name(run.project)
        experiment = found.experiment_id if found else self.client.create_experiment(run.project)
        known = self.client.search_runs([experiment], filter_string=f"tags.`{TAG}` = '{run.id}'")
        if known:
            self.id = known[0].info.run_id
            self.client.set_terminated(self.id, status="RUNNING")
            return
        self.id = self.client.create_run(experiment, run_name=run.name, tags={TAG: run.id}).info.run_id
        params = [Param(key, str(value)[:_LONGEST]) for key, value in run.settings.items()]
        for first in range(0, len(params), _BATCH):
            self.client.log_batch(self.id, params=params[first : first + _BATCH])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self.client.log_batch(self.id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def close(self, failed: bool) -> None:
        self.client.set_terminated(self.id, status="FAILED" if failed else "FINISHED")


start = MlflowRun
