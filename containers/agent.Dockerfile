# syntax=docker/dockerfile:1
# Agents with vLLM: the nodes of a Ray cluster, the supervisor (`qlm agents`), or single agents (`qlm agent ID`).
# Build: docker build -f containers/agent.Dockerfile -t qlm-agent .
# The package itself: pure Python, so one wheel fits every image. What builds it stays behind.
FROM python:3.11-slim-bookworm AS wheel
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
RUN --mount=type=bind,target=/src \
    python3 -m venv --without-pip /opt/build \
    && python3 -m pip --python /opt/build/bin/python install --no-cache-dir --require-hashes \
        -r /src/requirements/build.lock \
    && /opt/build/bin/python -m hatchling build -t wheel -d /opt/dist

FROM vllm/vllm-openai:v0.32.0
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN --mount=type=bind,target=/src --mount=type=bind,from=wheel,source=/opt/dist,target=/opt/dist \
    python3 -m venv --without-pip /opt/qlm \
    && python3 -m pip --python /opt/qlm/bin/python install --no-cache-dir --require-hashes \
        -r /src/requirements/agent.lock \
    && python3 -m pip --python /opt/qlm/bin/python install --no-cache-dir --no-deps /opt/dist/qlm_serving-*.whl

# vLLM keeps the base's own Python, in which nothing is changed; `vllm.python: /opt/vllm/bin/python3` names it.
# A login shell, from which KubeRay starts Ray, forgets PATH: so ray and qlm are where it looks.
RUN vllm="$(command -v vllm)" && python="$(command -v python3)" \
    && mkdir -p /opt/vllm/bin \
    && ln -s "$vllm" /opt/vllm/bin/vllm \
    && ln -s "$python" /opt/vllm/bin/python3 \
    && ln -sf /opt/qlm/bin/ray /opt/qlm/bin/qlm /usr/local/bin/ \
    && useradd --uid 10001 --user-group --home-dir /var/lib/qlm --create-home --shell /usr/sbin/nologin qlm

# All that is written goes below /var/lib/qlm and /tmp: the rest may be mounted read-only.
ENV HOME=/var/lib/qlm \
    PATH=/opt/qlm/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/qlm
USER 10001:10001
ENTRYPOINT ["/opt/qlm/bin/qlm"]
CMD ["agents", "--config", "/etc/qlm/qlm.yaml", "--ray-address", "auto"]
