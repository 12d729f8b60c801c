#!/usr/bin/env bash
# Qwen3.5-35B-A3B learns Geo3K by GRPO: Megatron-Core trains, vLLM generates.
#
#   bash run_qwen3_5_35b_megatron.sh [key=value ...] [--dry-run]
#
# The values are in src/tandem/recipes/qwen3_5_35b_a3b.yaml. Variables that replace them (NPU / GPU defaults):
#
#   DEVICE               npu, gpu or cpu (a tiny stand-in); found when unset
#   HF_MODEL_PATH        Qwen/Qwen3.5-35B-A3B; hub name or folder
#   train_path           $HOME/data/geo3k/train.parquet; fetched when absent
#   test_path            $HOME/data/geo3k/test.parquet; fetched when absent
#   NDEVICES_PER_NODE    16 / 8
#   TP PP CP EP ETP      2 2 1 8 1 / 2 1 1 8 1; cuts of the trainer: tensor, pipeline, context, expert, tensor in an expert
#   GEN_TP               8; devices of one vLLM generator
#   ALL_OFFLOAD          True; parameters and gradients in host memory while not in use, the optimizer always
#
# key=value wins over all of them: trainer.total_steps=2, or as in verl actor_rollout_ref.rollout.n=8.
set -euo pipefail

repository=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
tandem=$repository/.venv/bin/tandem
if [ ! -x "$tandem" ] && ! tandem=$(command -v tandem); then
    echo "tandem: not installed: run \`make setup\` in $repository, or pip install it and put it on PATH" >&2
    exit 2
fi
exec "$tandem" train qwen3_5_35b_a3b "$@"
