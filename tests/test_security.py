"""What docs/security.md says of the code: nothing from outside is unpickled, unpacked or run, and no secret is written down."""

import ast
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tandem.cli import edge
from tandem.config.checkpointfolder import differences
from tandem.config.load import load
from tandem.config.userfile import load_from
from tandem.run.run_dir import begin
from tandem.run.tracker import Tracker
from tandem.secrets import SecretlessFormatter, without_secrets
from tests.test_structure import FILES, name_of, nodes

OF_OURS = "between processes of one run, over Ray or a folder of their own"
UNPICKLING = {  # file -> what in it reads a pickle, and why that comes from nobody else
    "devices/handles.py": ({"pickle.loads"}, OF_OURS),
    "engine/fork_ranks.py": ({"pickle.loads"}, OF_OURS),
    "engine/loading.py": ({"pickle.Unpickler"}, "the reader that lets no other class through"),
    "engine/writing.py": ({"pickle.loads"}, "of its own `dumps`, and of the ranks' results over Ray"),
    "rollout/receiver.py": ({"pickle.loads"}, OF_OURS),
}
READERS = {
    *(
        "pickle.load",
        "pickle.loads",
        "pickle.Unpickler",
        "torch.load",
        "np.load",
        "numpy.load",
        "joblib.load",
        "marshal.loads",
        "dill.loads",
    ),
    *("cloudpickle.loads", "pd.read_pickle", "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "shelve.open"),
    *("dist_checkpointing.load", "np.loads", "torch.hub.load", "torch.jit.load"),
}
UNPACKERS = {"zipfile", "tarfile", "shutil.unpack_archive", "py7zr", "rarfile"}
EVALUATORS = {"eval", "exec", "compile", "os.system", "os.popen"}
USER_CODE = {"config/userfile.py"}  # the one place that runs a file of the user's
SECRET = "hunter2hunter2"


def called(file: Path) -> set[str]:
    """Dotted names of what a file calls or derives from."""
    names = {ast.unparse(node.func) for node in nodes(file, ast.Call)}
    return names | {ast.unparse(base) for node in nodes(file, ast.ClassDef) for base in node.bases}


def imported(file: Path) -> set[str]:
    found = {alias.name for node in nodes(file, ast.Import) for alias in node.names}
    return found | {f"{node.module}.{alias.name}" for node in nodes(file, ast.ImportFrom) for alias in node.names}


def test_pickles_are_read_between_our_own_processes_only():
    found = {name_of(file): called(file) & READERS for file in FILES}
    found["engine/loading.py"] -= {"dist_checkpointing.load"}  # behind the reader: tests/engine/test_checkpoint.py
    assert {name: names for name, names in found.items() if names} == {name: names for name, (names, _) in UNPICKLING.items()}
    renamed = {name_of(file): imported(file) & {reader for reader in READERS if "." in reader} for file in FILES}
    assert not {name: names for name, names in renamed.items() if names}, "under another name it would not be seen"


def test_yaml_makes_plain_values_only():
    loaders = {ast.unparse(base) for file in FILES if "yaml" in imported(file) for node in nodes(file, ast.ClassDef) for base in node.bases}
    assert "yaml.Loader" not in loaders and "yaml.UnsafeLoader" not in loaders and "yaml.FullLoader" not in loaders


def test_nothing_unpacks_archives():
    """No member can then leave its folder. The hub's files are fetched one by one, by huggingface_hub."""
    assert not {name_of(file): found for file in FILES if (found := (imported(file) | called(file)) & UNPACKERS)}


def test_texts_are_not_run():
    assert not {name_of(file): found for file in FILES if (found := called(file) & EVALUATORS)}
    assert {name_of(file) for file in FILES if "spec_from_file_location" in file.read_text()} == USER_CODE


def test_code_of_a_model_folder_is_never_asked_for():
    asking = [name_of(file) for file in FILES for node in nodes(file, ast.keyword) if node.arg == "trust_remote_code"]
    assert not asking


def test_code_beside_a_model_is_not_run(tiny_model, tmp_path):
    """`auto_map` names it in each of the folder's configurations; without an answer transformers would ask the terminal."""
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    for name in ("config.json", "tokenizer_config.json", "preprocessor_config.json", "processor_config.json"):
        if (folder / name).is_file():
            auto = {each: f"evil.{each}" for each in ("AutoConfig", "AutoModel", "AutoProcessor", "AutoImageProcessor")}
            auto["AutoTokenizer"] = ["evil.Slow", "evil.Fast"]
            (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | {"auto_map": auto}))
    code = "import sys\nfrom tandem.config.load import load\nfrom tandem.data.prompts import PromptBuilder\n"
    code += "from tandem.qwen3_5.config import read_config\nread_config(sys.argv[1])\nPromptBuilder(sys.argv[1], load('demo').data)\n"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=120, input="y\n")
    assert not (tmp_path / "ran").exists()
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_graders_neighbours_are_not_run(tmp_path):
    """Only what the named file imports itself."""
    for name in ("other", "conftest", "sitecustomize", "__init__"):
        (tmp_path / f"{name}.py").write_text("raise AssertionError('this file was not named')\n")
    (tmp_path / "mine.py").write_text("def grade(text):\n    return 1.0\n")
    grade, _ = load_from(f"{tmp_path / 'mine.py'}:grade")
    assert grade("") == 1.0


# Secrets


@pytest.fixture
def secretive(tmp_path, monkeypatch) -> list[str]:
    """Settings with secrets, and variables with the same ones."""
    for name in ("WANDB_API_KEY", "HF_TOKEN", "SWANLAB_API_KEY", "MY_PASSWORD", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"{SECRET}-{name.lower()}")
    monkeypatch.setenv("TOKENIZER_DIR", str(tmp_path))  # no secret
    reward = f"reward.name=http://me:{SECRET}@grader/score?token={SECRET}"
    return [reward, f"data.train_files=[{tmp_path}/{SECRET}-hf_token.parquet]", f"run_dir={tmp_path}/run", "device=cpu"]


def test_secrets_are_in_nothing_that_a_run_writes_or_says(secretive, tmp_path, monkeypatch, capsys):
    config = load("demo", secretive, env={})
    (tmp_path / "run" / "logs").mkdir(parents=True)
    begin(config, "cpu")
    track = Tracker(tmp_path / "run")
    track.note(f"asked with {SECRET}-wandb_api_key")
    record = logging.LogRecord("tandem", logging.INFO, "", 0, f"HF says {SECRET}-hf_token", (), None)
    told = SecretlessFormatter("%(message)s").format(record) + str(track.take(0.1))

    def fail() -> None:
        raise RuntimeError(f"401 for {SECRET}-swanlab_api_key")

    monkeypatch.setattr(edge, "_run_dir", tmp_path / "run")
    assert edge.run(fail) == 1
    written = {file.name: file.read_text() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    told += capsys.readouterr().err + "".join(written.values())
    assert {"config.yaml", "notes.jsonl", "error.log"} <= written.keys()
    assert SECRET not in told and told.count("***") >= 6
    assert yaml.safe_load(written["config.yaml"])["run_dir"] == f"{tmp_path}/run", "a variable that names a folder holds no secret"


def test_a_run_with_secrets_in_its_settings_can_be_gone_on_with_after_they_were_changed(secretive):
    config = load("demo", secretive, env={})
    saved = without_secrets(config.model_dump(mode="json"))
    assert differences({"config": saved}, config) == []
    other = load("demo", [setting.replace(f"token={SECRET}", "token=another") for setting in secretive], env={})
    assert differences({"config": saved}, other) == []
    [(key, _, new)] = differences({"config": saved}, load("demo", [*secretive, f"reward.name=http://x:{SECRET}@other/"], env={}))
    assert (key, new) == ("reward.name", "http://***@other/")
