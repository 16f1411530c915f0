# Image of the gateway, the scaler, the prober and the emulated worker: one virtual environment on a plain Python.
# BASE has to carry python3 (3.11 to 3.13) and nothing else; BUILD_BASE the same Python at the same path, with pip, a C
# compiler and Python's headers: the core is compiled (COMPILED=false leaves it as written, and needs no compiler).
# Where packages come from an index of your own: --secret id=pip,src=/etc/pip.conf
ARG BASE=python:3.13-slim-bookworm
ARG BUILD_BASE=python:3.13-bookworm

FROM ${BUILD_BASE} AS build
ARG COMPILED=true
WORKDIR /src
# What is compiled carries the name of the folder it was compiled in, which must not be another in each build.
ENV HATCH_BUILD_HOOK_ENABLE_MYPYC=${COMPILED} HATCH_MYPYC_BUILD_DIR=/compiled LDFLAGS=-Wl,--strip-all PYTHONHASHSEED=0 SOURCE_DATE_EPOCH=1700000000 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
COPY deploy/runtime.lock deploy/build.lock ./
RUN --mount=type=secret,id=pip,target=/etc/pip.conf,required=false \
    python3 -m venv --without-pip /opt/sluice \
    && python3 -m venv --without-pip /opt/build \
    && python3 -m pip --python /opt/sluice/bin/python3 install --no-compile --require-hashes --no-deps --requirement runtime.lock \
    && python3 -m pip --python /opt/build/bin/python3 install --require-hashes --no-deps --requirement build.lock
COPY pyproject.toml README.md LICENSE ./
COPY service service
# Byte code is checked against nothing at start: the files never change, and a read-only root could not renew it.
RUN mkdir -p "$HATCH_MYPYC_BUILD_DIR" \
    && python3 -m pip --python /opt/build/bin/python3 wheel --no-build-isolation --no-deps --wheel-dir /wheels . \
    && python3 -m pip --python /opt/sluice/bin/python3 install --no-compile --no-index --no-deps /wheels/*.whl \
    && /opt/sluice/bin/python3 -m compileall -q -j 1 --invalidation-mode unchecked-hash /opt/sluice/lib \
    && rm -f /opt/sluice/bin/activate* /opt/sluice/bin/Activate* \
    && mkdir /data

FROM ${BASE}
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Sluice" \
      org.opencontainers.image.description="Inference gateway with SLA tiers in front of vLLM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /opt/sluice /opt/sluice
# Relative paths of the settings are below it: mount something that lasts.
COPY --from=build --chown=10001:10001 /data /var/lib/sluice
WORKDIR /var/lib/sluice
ENV PATH=/opt/sluice/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 SLUICE_CONFIG=/etc/sluice/sluice.yaml
USER 10001:10001
EXPOSE 8080 8081
STOPSIGNAL SIGTERM
ENTRYPOINT ["sluice"]
CMD ["serve"]
