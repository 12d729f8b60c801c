# CPU: what `make setup` does, in an image.
#
#   docker build -f docker/cpu.Dockerfile -t tandem:cpu .
#   docker run --shm-size 4g -it tandem:cpu make demo
#
# Not built by us yet; `make setup` itself runs in CI on a bare machine.
FROM python:3.11-bookworm

WORKDIR /opt/tandem
COPY . .
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN make setup TORCH_INDEX=${TORCH_INDEX}

ENV PATH=/opt/tandem/.venv/bin:${PATH}
CMD ["tandem", "doctor", "--device", "cpu"]
