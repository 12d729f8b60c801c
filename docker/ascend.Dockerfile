# Ascend: on the image of the guide, which has CANN, torch, torch_npu, vLLM, vllm-ascend, Megatron-LM, MindSpeed and Ray.
#
#   docker build -f docker/ascend.Dockerfile -t tandem:ascend .
#
# How to start it with the devices: docs/ascend.md. Not built by us yet: we have no such machine.
ARG BASE=quay.io/ascend/verl:verl-9.0.0-a3-ubuntu22.04-py3.11-latest
FROM ${BASE}

WORKDIR /opt/tandem
COPY . .
# What the image has belongs together: it is held fast, so that a package which wants another version of it fails here and not in a run.
RUN pip freeze --exclude-editable | grep -v ' @ ' > /opt/image.txt \
    && pip install --no-cache-dir --constraint /opt/image.txt --editable .

CMD ["tandem", "doctor", "--device", "npu"]
