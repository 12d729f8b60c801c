"""Recipes and overrides: values keep their type, and every mistake is named with its place and the nearest right thing."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_args, get_origin

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandem.config.checks import check
from tandem.config.keys import SETTINGS, allowed, nearest_key
from tandem.config.load import load, resolved_yaml, with_replicas
from tandem.config.recipe_file import builtin_recipes
from tandem.config.schema import Config
from tandem.errors import UserError


def write(folder: Path, text: str, name: str = "r.yaml") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def of(text: str, tmp_path: Path, *overrides: str, env: dict[str, str] | None = None) -> Config:
    return load(write(tmp_path, text), overrides, env or {})


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", ".0001", "1E-4"])
def test_numbers_that_yaml_1_1_reads_as_text_are_numbers(text: str, tmp_path: Path) -> None:
    assert of(f"optimizer: {{lr: {text}}}", tmp_path).optimizer.lr == 1e-4
    assert of("", tmp_path, f"optimizer.lr={text}").optimizer.lr == 1e-4


def test_an_integer_is_taken_for_a_float_but_not_the_other_way(tmp_path: Path) -> None:
    assert of("optimizer: {lr: 1}", tmp_path).optimizer.lr == 1.0
    with pytest.raises(UserError, match="must be an integer"):
        of("trainer: {total_steps: 2.0}", tmp_path)


@pytest.mark.parametrize("text", ["2026-01-02", "1:30", "1e-4", "on", "null", "123", "a: b #c", "[x", "a\\b", "'q'", ""])
def test_a_text_override_stays_as_written(text: str, tmp_path: Path) -> None:
    assert of("run_dir: before", tmp_path, f"run_dir={text}").run_dir == text


def test_a_text_in_yaml_may_look_like_a_number_or_date(tmp_path: Path) -> None:
    assert of("run_dir: 2026-01-02\nmodel:\n  path: 0123\n", tmp_path).run_dir == "2026-01-02"
    assert of("run_dir:\nmodel: {path: 0123}\n", tmp_path).model.path == "0123"


@pytest.mark.parametrize(
    ("text", "files"), [("a.parquet", ["a.parquet"]), ("[a, b]", ["a", "b"]), ("[]", []), ("7", ["7"]), ("[1, 2]", ["1", "2"])]
)
def test_one_file_or_a_list_becomes_a_list_of_texts(text: str, files: list[str], tmp_path: Path) -> None:
    assert of("", tmp_path, f"data.train_files={text}").data.train_files == files
    assert of(f"data: {{train_files: {text}}}", tmp_path).data.train_files == files


def test_an_override_may_set_a_section(tmp_path: Path) -> None:
    config = of("algorithm: {kl: {coef: 0.5, kind: k1}}", tmp_path, "algorithm.kl={coef: 0.1}")
    assert (config.algorithm.kl.coef, config.algorithm.kl.kind) == (0.1, "k1")


def test_later_sources_win(tmp_path: Path) -> None:
    write(tmp_path, "trainer: {seed: 1, total_steps: 1, save_freq: 1}\nrun_dir: from-base", "base.yaml")
    env = {"TANDEM__TRAINER__TOTAL_STEPS": "3", "TANDEM__TRAINER__SAVE_FREQ": "3", "TANDEM_OTHER": "x"}
    config = of("base: base.yaml\ntrainer: {seed: 2, total_steps: 2, save_freq: 2}", tmp_path, "trainer.save_freq=4", env=env)
    assert (config.run_dir, config.trainer.seed, config.trainer.total_steps, config.trainer.save_freq) == ("from-base", 2, 3, 4)
    assert of("", tmp_path, "trainer.seed=1", "trainer.seed=2").trainer.seed == 2


def test_a_base_may_be_built_in(tmp_path: Path) -> None:
    config = of("base: demo\ntrainer: {total_steps: 3}", tmp_path)
    assert config.trainer.total_steps == 3
    assert config.recipe == "r"
    assert config.prepare == load("demo", env={}).prepare == "demo"


def message(text: str, tmp_path: Path, *overrides: str, env: dict[str, str] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        of(text, tmp_path, *overrides, env=env)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "override", "origin", "near"),
    [
        ("optimizer:\n  lr: 1\n  lrr: 2\n", "", "r.yaml:3", "`optimizer.lr`"),
        ("optimiser: {lr: 1}", "", "r.yaml:1", "`optimizer"),
        ("# c\n\nlr: 3", "", "r.yaml:3", "`optimizer.lr`"),
        ("<<: {run_dir: x}", "", "r.yaml:1", "did you mean"),
        ("", "trainer.total_step=3", "override `trainer.total_step=3`", "`trainer.total_steps`"),
        ("", "tp=3", "override `tp=3`", "`rollout.tp`"),
        ("", "trainer.seed.x=3", "override", "did you mean"),
        ("", "base=demo", "override", "did you mean"),
    ],
)
def test_unknown_keys_name_their_place_and_the_nearest_key(text: str, override: str, origin: str, near: str, tmp_path: Path) -> None:
    said = message(text, tmp_path, *([override] if override else []))
    assert "unknown key" in said
    assert origin in said
    assert near in said


def test_an_unknown_environment_variable_is_an_error(tmp_path: Path) -> None:
    said = message("", tmp_path, env={"TANDEM__OPTIMIZER__LRR": "1"})
    assert "environment variable TANDEM__OPTIMIZER__LRR" in said
    assert "`optimizer.lr`" in said


@pytest.mark.parametrize("key", sorted(SETTINGS))
def test_one_letter_too_many_suggests_the_right_key(key: str) -> None:
    middle = len(key) - 2
    assert nearest_key(key[:middle] + "x" + key[middle:]) == key


@pytest.mark.parametrize(
    ("override", "allowed_text"),
    [
        ("optimizer.lr=fast", "a finite number > 0"),
        ("optimizer.lr=0", "a finite number > 0"),
        ("optimizer.lr=.inf", "a finite number"),
        ("optimizer.lr=.nan", "a finite number"),
        ("optimizer.lr=[1]", "a finite number"),
        ("optimizer.betas=[0.9]", "a list of 2"),
        ("trainer.seed=-1", "an integer >= 0"),
        ("trainer.seed=true", "an integer >= 0"),
        ("trainer.seed='1'", "an integer >= 0"),
        ("trainer.seed=010", "an integer >= 0"),
        ("trainer.seed=", "an integer >= 0"),
        ("trainer.deterministic=yes", "true or false"),
        ("trainer.deterministic=1", "true or false"),
        ("rollout.top_p=1.5", "a finite number > 0 and <= 1"),
        ("algorithm.kl.kind=k4", "one of k1, abs, k2, k3"),
        ("parallel.sp=3", "true or false or null"),
        ("cluster.master_port=65536", "an integer >= 0 and <= 65535"),
        ("data.train_files=[[a]]", "a list, each a text"),
        ("data.train_files={a: b}", "a list, each a text"),
    ],
)
def test_a_bad_value_names_key_value_and_what_is_allowed(override: str, allowed_text: str, tmp_path: Path) -> None:
    said = message("", tmp_path, override)
    assert f"override `{override}`" in said
    assert said.startswith(override.partition("=")[0] + " = ")
    assert allowed_text in said


def test_a_bad_value_in_a_file_names_its_line(tmp_path: Path) -> None:
    assert "r.yaml:3" in message("trainer:\n  seed: 1\n  total_steps: many\n", tmp_path)


@pytest.mark.parametrize("override", ["foo", "=3", "optimizer.lr =3", "--dry"])
def test_a_malformed_override_shows_the_form(override: str, tmp_path: Path) -> None:
    said = message("", tmp_path, override)
    assert f"`{override}`" in said
    assert "key=value" in said


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("trainer:\n  seed: 1\n  seed: 2\n", "duplicate key `trainer.seed`"),
        ("trainer: {seed: 1}\nrollout: {n: 2}\ntrainer: {seed: 1}\n", "duplicate key `trainer`"),
        ("trainer: [1, 2", "not valid YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("just text", "a section, not a value"),
        ("trainer: 3", "trainer must hold keys and values"),
        ("base: r.yaml", "its own base"),
        ("base: nowhere.yaml", "no recipe `nowhere.yaml`"),
        ("trainer: {seed: !!python/name:os.system x}", "trainer.seed"),
    ],
)
def test_broken_files_are_refused(text: str, part: str, tmp_path: Path) -> None:
    assert part in message(text, tmp_path)


def test_a_binary_file_is_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(UserError, match="cannot read the recipe"):
        load(str(path), env={})


def test_an_unknown_recipe_lists_the_built_in_ones() -> None:
    with pytest.raises(UserError) as caught:
        load("dem0", env={})
    assert all(name in str(caught.value) for name in builtin_recipes())
    assert "did you mean `demo`" in str(caught.value)


@pytest.mark.parametrize("name", builtin_recipes())
@pytest.mark.parametrize("device", ["npu", "gpu", "cpu"])
def test_built_in_recipes_are_legal_and_round_trip(name: str, device: str, tmp_path: Path) -> None:
    config = load(name, [f"device={device}"], env={})
    check(config)
    assert of(resolved_yaml(config), tmp_path) == config


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=20)


def values_of(key: str) -> st.SearchStrategy[object]:
    """Values in the range of a setting, from its annotation and bounds."""
    field = SETTINGS[key]
    kind = field.annotation
    bounds = {name: getattr(rule, name) for rule in field.metadata for name in ("gt", "ge", "lt", "le") if hasattr(rule, name)}
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if kind is int:
        return st.integers(bounds.get("ge", -(2**60)), bounds.get("le", 2**60))
    if kind is float:
        low, high = bounds.get("gt", bounds.get("ge")), bounds.get("lt", bounds.get("le"))
        return st.floats(low, high, exclude_min="gt" in bounds, exclude_max="lt" in bounds, allow_nan=False, allow_infinity=False)
    if get_origin(kind) is tuple:
        return st.tuples(st.floats(0, 1), st.floats(0, 1))
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        if get_origin(item) is Literal:
            return st.lists(st.sampled_from(get_args(item)), unique=True)
        return st.lists(st.integers(1, 2**60) if item is int else TEXTS, max_size=3, unique=item is int)
    return TEXTS if kind is str else st.sampled_from([True, False] if kind is bool else [True, False, None])


@settings(max_examples=60, deadline=None)
@given(st.fixed_dictionaries({}, optional={key: values_of(key) for key in SETTINGS}))
def test_resolved_yaml_round_trips_for_any_legal_values(tmp_path_factory: pytest.TempPathFactory, chosen: dict[str, object]) -> None:
    tree: dict[str, object] = {}
    for key, value in chosen.items():
        *sections, name = key.split(".")
        branch = tree
        for part in sections:
            branch = branch.setdefault(part, {})  # type: ignore[assignment]
        branch[name] = value
    config = Config.model_validate(tree)
    path = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    path.write_text(resolved_yaml(config), encoding="utf-8")
    assert load(str(path), env={}) == with_replicas(config)


def test_every_setting_says_what_it_accepts() -> None:
    for key, field in SETTINGS.items():
        default = field.get_default(call_default_factory=True)
        assert allowed(field), key
        assert not (isinstance(default, float) and math.isinf(default)), key


def test_importing_the_config_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "import tandem.config.load, tandem.config.checks, tandem.config.preflight\n"
        "tandem.config.load.load('demo')\n"
        "print([m for m in ('torch', 'ray', 'vllm', 'megatron', 'transformers', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
