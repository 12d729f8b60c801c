#!/usr/bin/env bash
# Qwen3.5-122B-A10B learns Geo3K by GRPO: Megatron-Core trains, vLLM generates.
#
#   bash run_qwen3_5_122b_a10b_megatron.sh [key=value ...] [--dry-run]
#
# The values are in src/tandem/recipes/qwen3_5_122b_a10b.yaml. Variables that replace them (NPU / GPU defaults):
#
#   DEVICE                           npu, gpu or cpu (a tiny stand-in); found when unset
#   HF_MODEL_PATH                    Qwen/Qwen3.5-122B-A10B; hub name or folder
#   train_files, test_files          $HOME/data/geo3k/{train,test}.parquet; fetched when absent
#   save_path                        the run's folder, checkpoints in it; runs/<recipe>-<time>
#   project_name, exp_name           names in the default folder: runs/<project>/<experiment>-<time>
#   nnodes                           4
#   n_devices_per_node               16 / 8; NDEVICES_PER_NODE is the same
#   TP PP CP EP ETP                  2 4 1 16 1 / 2 2 1 8 1; cuts of the trainer: tensor, pipeline, context, expert, tensor in an expert
#   ACTOR_VPP                        null; virtual pipeline stages a device
#   GEN_TP                           16 / 8; devices of one vLLM generator
#   vllm_max_model_len               8192 / 15768 tokens
#   rollout_gpu_memory_utilization   0.6 / 0.66 of a device's memory
#   adv_estimator                    grpo
#   ALL_OFFLOAD                      True; parameters and gradients in host memory while not in use, the optimizer always
#
# key=value wins over all of them: trainer.total_steps=2, or as in verl actor_rollout_ref.rollout.n=8.
set -euo pipefail

repository=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
tandem=$repository/.venv/bin/tandem
if [ ! -x "$tandem" ] && ! tandem=$(command -v tandem); then
    echo "tandem: not installed: run \`make setup\` in $repository, or pip install it and put it on PATH" >&2
    exit 2
fi
exec "$tandem" train qwen3_5_122b_a10b "$@"
