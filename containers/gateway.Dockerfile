# syntax=docker/dockerfile:1
# The gateway: the HTTP and gRPC doors. Build: docker build -f containers/gateway.Dockerfile -t qlm-gateway .
# The package itself: pure Python, so one wheel fits every image. What builds it stays behind.
FROM python:3.11-slim-bookworm AS wheel
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
WORKDIR /src
RUN --mount=type=bind,target=/src \
    python3 -m venv --without-pip /opt/build \
    && python3 -m pip --python /opt/build/bin/python install --no-cache-dir --require-hashes \
        -r /src/requirements/build.lock \
    && /opt/build/bin/python -m hatchling build -t wheel -d /opt/dist

FROM python:3.11-slim-bookworm
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
RUN --mount=type=bind,target=/src --mount=type=bind,from=wheel,source=/opt/dist,target=/opt/dist \
    python3 -m venv --without-pip /opt/qlm \
    && python3 -m pip --python /opt/qlm/bin/python install --no-cache-dir --require-hashes \
        -r /src/requirements/gateway.lock \
    && python3 -m pip --python /opt/qlm/bin/python install --no-cache-dir --no-deps /opt/dist/qlm_serving-*.whl

# All that is written goes below /var/lib/qlm and /tmp: the rest may be mounted read-only.
RUN useradd --uid 10001 --user-group --home-dir /var/lib/qlm --create-home --shell /usr/sbin/nologin qlm
ENV HOME=/var/lib/qlm \
    PATH=/opt/qlm/bin:$PATH \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/qlm
USER 10001:10001
ENTRYPOINT ["/opt/qlm/bin/qlm"]
CMD ["gateway", "--config", "/etc/qlm/qlm.yaml"]
