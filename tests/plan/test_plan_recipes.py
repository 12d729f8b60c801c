"""The guide's recipes fit where the guide runs them, and what does not fit is told with a change that helps."""

import pytest

from tandem.config.load import load
from tandem.plan.advice import smallest_change
from tandem.plan.before_run import plan_before_run
from tandem.plan.legality import broken_rules
from tandem.plan.plan import Machine, changed, legal_shapes, make_plan, model_size
from tandem.plan.shapes import PUBLISHED, shapes_of
from tests.plan.recipes import GIB, RECIPES, recipe

WHERE = [("35b_npu", 64), ("122b_npu", 64), ("35b_gpu", 80), ("35b_gpu", 96), ("122b_gpu", 80), ("122b_gpu", 96)]


def plan(config, gib):
    shapes, broken = legal_shapes(config)
    assert not broken
    return make_plan(config, shapes, Machine(device_bytes=gib * GIB))


@pytest.mark.parametrize(("name", "gib"), WHERE)
def test_the_guides_recipes_fit(name, gib):
    assert plan(recipe(name), gib).fits


@pytest.mark.parametrize(("name", "fits"), [("35b_npu", True), ("122b_npu", True), ("35b_gpu", False), ("122b_gpu", False)])
def test_with_the_optimizer_on_the_device_the_gpu_layouts_do_not(name, fits):
    """Half the devices hold twice as much: 12 bytes of optimizer a parameter is what is too much for 80 GiB."""
    made = plan(recipe(name, optimizer={"on_cpu": False}), dict(WHERE)[name] if "npu" in name else 80)
    assert made.fits is fits
    assert [check.phase for check in made.checks if not check.fits] == ([] if fits else ["update"])


@pytest.mark.parametrize(("path", "total"), [("Qwen/Qwen3.5-35B-A3B", 35.1), ("Qwen/Qwen3.5-122B-A10B", 122.6)])
def test_the_tables_models_are_as_large_as_their_names(path, total):
    assert model_size(shapes_of(PUBLISHED[path])) / 1e9 == pytest.approx(total, abs=0.05)


@pytest.mark.parametrize("name", RECIPES)
def test_the_stages_of_a_layout_add_up_to_the_model(name):
    """Dense weights cut by tp: norms, router and vision tower are on each of its ranks; experts cut by ep."""
    made = plan(recipe(name), 64)
    layout, s = made.layout, made.shapes
    total = 0
    for stage in made.stages:
        experts = sum(p.numel for p in stage.rank.parameters if p.expert) * layout.ep
        cut = [p for p in stage.rank.parameters if not p.expert and len(p.shape) > 1 and not p.name.startswith("visual")]
        cut = [p for p in cut if "router" not in p.name and "gate_weight" not in p.name]
        dense = sum(p.numel for p in stage.rank.parameters if not p.expert)
        per_head = 2 * s.linear_num_value_heads // layout.tp * sum(s.layer_types[i] == "linear_attention" for r in stage.layers for i in r)
        total += experts + dense + (layout.tp - 1) * (sum(p.numel for p in cut) + per_head)
    assert total == model_size(s)


@pytest.mark.parametrize(("name", "gib"), [("35b_npu", 32), ("122b_npu", 40), ("35b_gpu", 80)])
def test_the_change_that_is_told_makes_it_fit_and_is_legal(name, gib):
    made = plan(recipe(name, trainer={"recompute": "none", "offload": False}, optimizer={"on_cpu": False}), gib)
    assert made.fits is False
    change = smallest_change(made)
    assert change
    after = changed(made.config, change)
    assert not broken_rules(after, PUBLISHED[after.model.path])
    assert plan(after, gib).fits
    for key in change:  # nothing in it is needless
        rest = changed(made.config, {name: value for name, value in change.items() if name != key})
        assert broken_rules(rest, PUBLISHED[rest.model.path]) or not plan(rest, gib).fits


def test_recompute_is_told_before_more_devices():
    """122B without recompute on 64 GiB: activations of a stage's 12 layers for 4 micro-batches are what is too much."""
    made = plan(recipe("122b_npu", trainer={"recompute": "none"}, optimizer={"on_cpu": False}), 64)
    assert made.fits is False
    assert smallest_change(made) in ({"trainer.recompute": "selective"}, {"trainer.recompute": "full"})


def test_a_run_that_does_not_fit_is_refused_with_the_change():
    from tandem.errors import UserError

    assert plan_before_run(recipe("35b_npu"), 64 * GIB)["fits"] is True
    with pytest.raises(UserError, match=r"does not fit: device, update: 47\.9 GiB of 40\.0 GiB(?s:.*)set [a-z_.]+="):
        plan_before_run(recipe("35b_npu", optimizer={"on_cpu": False}), 40 * GIB)


def test_a_hub_model_whose_sizes_are_not_known_yet_does_not_stop_a_run():
    assert plan_before_run(recipe("35b_npu", model={"path": "Qwen/Qwen3.5-9B"}), 64 * GIB) is None


def test_generators_on_a_cpu_that_would_each_take_a_share_of_the_host_are_told_a_size_for_their_cache():
    config = load("demo", ["rollout.cache_bytes=0"], env={})
    shapes, _ = legal_shapes(config)
    made = make_plan(config, shapes, Machine(host_bytes=16 * GIB))
    assert made.fits is False  # two of them at 0.6 each
    change = smallest_change(made)
    assert change is not None and change.keys() == {"rollout.cache_bytes"}
    wave = config.rollout.max_num_seqs * (made.generator.of_token * 120 + made.generator.of_sequence)
    assert wave <= change["rollout.cache_bytes"] < wave + (2 << 20)


def test_the_settings_own_figure_comes_before_what_the_device_says():
    from tandem.errors import UserError

    with pytest.raises(UserError, match=r"of 40\.0 GiB"):
        plan_before_run(recipe("35b_npu", trainer={"device_memory_bytes": 40 * GIB}, optimizer={"on_cpu": False}), 64 * GIB)


def test_offload_takes_the_trainer_out_of_the_way_of_the_generator_and_puts_it_on_the_host():
    inside, away = (plan(recipe("35b_npu", trainer={"offload": offload}, optimizer={"on_cpu": False}), 64) for offload in (False, True))
    states = inside.stages[0].rank.states
    moved = states.weights + states.gradients + states.optimizer
    assert inside.stages[0].phases["rollout"].total - away.stages[0].phases["rollout"].total == moved
    assert inside.stages[0].phases["update"].total == away.stages[0].phases["update"].total
    assert away.host["rollout"].total - inside.host["rollout"].total == sum(
        (stage.rank.states.weights + stage.rank.states.optimizer) * stage.num_ranks for stage in away.stages
    )
