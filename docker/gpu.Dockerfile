# NVIDIA GPU: on vLLM's own image, which has torch and CUDA.
#
#   docker build -f docker/gpu.Dockerfile -t tandem:gpu .
#   docker run --gpus all --ipc host --ulimit nofile=65536 --network host -it tandem:gpu bash
#
# Not built by us yet: we have no such machine.
ARG BASE=vllm/vllm-openai:v0.32.0
FROM ${BASE}

WORKDIR /opt/tandem
COPY . .
RUN python3 -m pip freeze --exclude-editable | grep -v ' @ ' > /opt/image.txt \
    && python3 -m pip install --no-cache-dir --constraint /opt/image.txt --editable '.[gpu]'

ENTRYPOINT []
CMD ["tandem", "doctor", "--device", "gpu"]
